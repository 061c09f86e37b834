// Whether a value is made of JSON's own Python types alone.
#pragma once

#include <Python.h>

namespace relive {

// True: `value` is None, text, a number, or a dict with text as keys, list or tuple of such, at most `levels` deep, each
// exactly of that type; so its JSON text is valid and no deeper. False says nothing. No Python code runs meanwhile,
// so nothing that is looked at can go away.
inline bool is_plain(PyObject* value, int levels) {
  if (value == Py_None || PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
      PyBool_Check(value)) {
    return true;
  }
  if (levels == 0) return false;
  if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    Py_ssize_t at = 0;
    while (PyDict_Next(value, &at, &key, &item)) {
      if (!PyUnicode_CheckExact(key) || !is_plain(item, levels - 1)) return false;
    }
    return true;
  }
  if (PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
      if (!is_plain(PyList_GET_ITEM(value, i), levels - 1)) return false;
    }
    return true;
  }
  if (PyTuple_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      if (!is_plain(PyTuple_GET_ITEM(value, i), levels - 1)) return false;
    }
    return true;
  }
  return false;
}

}  // namespace relive
