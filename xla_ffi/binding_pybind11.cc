// The native module of the Bazel build; ZEN_MODULE is _native_cpu or _native_cuda.
#include <pybind11/pybind11.h>

#include "xla_ffi/binding.h"

PYBIND11_MODULE(ZEN_MODULE, m, pybind11::mod_gil_not_used()) {
  zen::define_module<pybind11::dict, pybind11::capsule>(m);
}
