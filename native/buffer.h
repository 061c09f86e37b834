// Memory of Python objects, through the buffer protocol, for as long as a call needs it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <nanobind/nanobind.h>

namespace relive {

// A buffer of one of NumPy's own arrays or numbers, contiguous unless asked for otherwise; given back at the end of the
// scope. It cannot be moved: a view may point into itself. Kinds are NumPy's: b bool, i integer, u unsigned, f float, c complex.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(PyObject* object) { acquire(object); }
  ~Buffer() { release(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void acquire(PyObject* object, int flags = PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS) {
    release();
    // A class that was written in Python may mean something else than its memory says, as arrays of numpy.ma do: these
    // are heap types, which NumPy's own arrays and numbers are not.
    if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) return;
    held_ = PyObject_GetBuffer(object, &view_, flags) == 0;
    if (!held_) PyErr_Clear();
  }

  // Whether there is one, of items of exactly this kind and size.
  bool holds(char kind, int64_t item_bytes) const { return held_ && view_.itemsize == item_bytes && is_kind(kind); }

  const char* data() const { return static_cast<const char*>(view_.buf); }
  int dimensions() const { return view_.ndim; }
  int64_t length(int dimension) const { return view_.shape[dimension]; }
  int64_t stride() const { return view_.strides[0]; }  // of the first dimension, where strides were asked for

 private:
  void release() {
    if (held_) PyBuffer_Release(&view_);
    held_ = false;
  }

  bool is_kind(char kind) const {
    const char* format = view_.format;
    if (format == nullptr) return false;
    if (*format == '@' || *format == '=' || *format == '<') ++format;
    if (kind == 'c') return format[0] == 'Z' && format[1] != '\0' && format[2] == '\0';
    if (format[0] == '\0' || format[1] != '\0') return false;
    switch (kind) {
      case 'b': return format[0] == '?';
      case 'i': return std::strchr("bhilq", format[0]) != nullptr;
      case 'u': return std::strchr("BHILQ", format[0]) != nullptr;
      case 'f': return std::strchr("efd", format[0]) != nullptr;
      default: return false;
    }
  }

  Py_buffer view_{};
  bool held_ = false;
};

// A one-dimensional array of exactly this type, as an argument: anything else is a TypeError in Python. A slice with a
// stride is copied. Cheaper than nanobind's ndarray, which goes through a DLPack capsule.
template <class T>
class Vector {
 public:
  bool take(PyObject* object) {
    buffer_.acquire(object, PyBUF_STRIDED_RO | PyBUF_FORMAT);
    if (!buffer_.holds(std::is_floating_point_v<T> ? 'f' : 'i', sizeof(T)) || buffer_.dimensions() != 1) return false;
    data_ = reinterpret_cast<const T*>(buffer_.data());
    if (buffer_.stride() != sizeof(T)) {
      copy_.resize(static_cast<size_t>(size()));
      for (int64_t i = 0; i < size(); ++i) {
        std::memcpy(&copy_[static_cast<size_t>(i)], buffer_.data() + i * buffer_.stride(), sizeof(T));
      }
      data_ = copy_.data();
    }
    return true;
  }

  const T* data() const { return data_; }
  int64_t size() const { return buffer_.length(0); }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  Buffer buffer_;
  std::vector<T> copy_;
  const T* data_ = nullptr;
};

}  // namespace relive

template <class T>
struct nanobind::detail::type_caster<relive::Vector<T>> {
  NB_TYPE_CASTER(relive::Vector<T>, const_name("numpy.ndarray"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept { return value.take(source.ptr()); }
};
