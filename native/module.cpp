#include <nanobind/nanobind.h>

NB_MODULE(_core, m) {
  m.doc() = "Native core of relive.buffer.";
}
