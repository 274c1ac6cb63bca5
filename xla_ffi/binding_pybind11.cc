// The native module of the Bazel build; ZEN_MODULE is _native_cpu or _native_cuda.
#include <pybind11/pybind11.h>

#include "xla_ffi/binding.h"

PYBIND11_MODULE(ZEN_MODULE, m) { zen::define_module<pybind11::dict, pybind11::capsule>(m); }
