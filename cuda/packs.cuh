// Packs: the elements of a row that a thread moves together, and kernels by dtype and pack size.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/dtypes.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// 16 bytes if all rows are multiples of that, else one element.
template <typename Dtype, int kSize>
struct Pack {
  typename Dtype::Stored at[kSize];
};

template <typename Dtype>
constexpr int kVectorPack = kVectorBytes / static_cast<int>(sizeof(typename Dtype::Stored));

// Whether rows of this width are moved in vectors from and to these addresses.
inline bool fits_vectors(int64_t width, int64_t element_bytes, const void* d_from, const void* d_to) {
  return width * element_bytes % kVectorBytes == 0 && is_aligned(d_from) && is_aligned(d_to);
}

// Stores a pack of a row.
template <typename Dtype, int kPackSize>
__device__ inline void store_pack(typename Dtype::Stored* to, const Pack<Dtype, kPackSize>& pack) {
  if constexpr (kPackSize == 1) {
    *to = pack.at[0];
  } else {
    store_whole(to, pack);
  }
}

// Returns launch(dtype, pack size), both as types, for an element and rows that do or do not fit vectors.
template <typename Launch>
cudaError_t visit_dtype_and_pack(Element element, bool vectors, Launch launch) {
  return visit_dtype(element, [&](auto dtype) {
    using Dtype = decltype(dtype);
    return vectors ? launch(dtype, std::integral_constant<int, kVectorPack<Dtype>>())
                   : launch(dtype, std::integral_constant<int, 1>());
  });
}

}  // namespace zen::cuda
