// The native module of the wheel; ZEN_MODULE is _native_cpu or _native_cuda.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "xla_ffi/binding.h"

NB_MODULE(ZEN_MODULE, m) { zen::define_module<nanobind::dict, nanobind::capsule>(m); }
