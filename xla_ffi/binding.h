// What a native module exposes, written once for nanobind and pybind11, whose APIs agree on all that is used here.
#pragma once

#include <utility>

#include "xla_ffi/registration.h"
#if defined(ZEN_WITH_CUDA)
#include "cuda/aggregate_encode.h"
#include "cuda/hash_bitmap_decode.h"
#include "cuda/hash_bitmap_encode.h"
#include "cuda/partition.h"
#include "cuda/partition_coo.h"
#include "cuda/send_largest.h"
#else
#include "xla_ffi/cpu/isa.h"
#endif

namespace zen {

// Dict and Capsule are the binding library's types; jax.ffi.register_ffi_target takes a capsule without a name.
template <typename Dict, typename Capsule>
Dict registrations_dict() {
  Dict dict;
  for (const Registration& entry : registrations()) {
    dict[entry.target] = Capsule(reinterpret_cast<void*>(entry.handler));
  }
  return dict;
}

template <typename Dict, typename Capsule, typename Module>
void define_module(Module& m) {
  m.def("registrations", &registrations_dict<Dict, Capsule>, "Capsules of the XLA FFI handlers by target name.");
  m.def("ffi_api_version", [] { return std::pair<int, int>(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
        "Version (major, minor) of the XLA FFI headers that this was built with.");
#if defined(ZEN_WITH_CUDA)
  m.def("partition_scratch_bytes", &cuda::partition_scratch_bytes, "Bytes for (units, width, itemsize, n, capacity).");
  m.def("partition_coo_scratch_bytes", &cuda::partition_coo_scratch_bytes, "Bytes for (entries, n).");
  m.def("aggregate_encode_scratch_bytes", &cuda::aggregate_encode_scratch_bytes, "Bytes for (size, width, itemsize).");
  m.def("encode_scratch_bytes", &cuda::encode_scratch_bytes, "Bytes for (size, width, itemsize).");
  m.def("send_largest_scratch_bytes", &cuda::send_largest_scratch_bytes,
        "Bytes for (size, itemsize, chunks, has_velocity).");
  m.def("decode_scratch_bytes", &cuda::decode_scratch_bytes, "Bytes for (units, width, itemsize, n).");
#else
  m.def("isa", [] { return chosen_isa().name; }, "The instruction set in use: avx512, avx2 or scalar.");
#endif
}

}  // namespace zen
