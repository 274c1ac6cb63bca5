// Elements as bits, moved 16 bytes at a time where the address allows it.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/common/bits.h"
#include "cuda/launch.cuh"

namespace zen::cuda {

constexpr int kVectorBytes = 16;

// Elements of a block's chunk, by their size.
template <template <typename> class Chunk>
constexpr int64_t elements_per_chunk(int64_t element_bytes) {
  return element_bytes == 2   ? Chunk<uint16_t>::kPerBlock
         : element_bytes == 4 ? Chunk<uint32_t>::kPerBlock
                              : Chunk<uint64_t>::kPerBlock;
}

ZEN_HOST_DEVICE bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0;
}

template <typename Bits>
struct Vector {
  static constexpr int kSize = kVectorBytes / static_cast<int>(sizeof(Bits));
  Bits at[kSize];
};

// The elements at `from`, a multiple of 16 bytes. They are read once, so they are marked as the first to leave the
// cache.
template <typename Bits>
__device__ inline Vector<Bits> load_whole_vector(const Bits* from) {
  const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
  Vector<Bits> vector;
  memcpy(&vector, &raw, sizeof(raw));
  return vector;
}

// Elements first .. first + kSize - 1 of `source`; those at or beyond `limit` are 0. `aligned`: source + first is a
// multiple of 16 bytes.
template <typename Bits>
__device__ inline Vector<Bits> load_vector(const Bits* source, int64_t first, int64_t limit, bool aligned) {
  if (aligned && first + Vector<Bits>::kSize <= limit) return load_whole_vector(source + first);
  Vector<Bits> vector;
#pragma unroll
  for (int k = 0; k < Vector<Bits>::kSize; ++k) vector.at[k] = first + k < limit ? source[first + k] : Bits{0};
  return vector;
}

// Floats that are moved together, up to 16 bytes at once.
template <typename T, int kSize>
struct alignas(kSize * sizeof(T) < kVectorBytes ? kSize * sizeof(T) : kVectorBytes) FloatPack {
  T at[kSize];
};

// The pack at an address that is a multiple of its size, or of 16.
template <int kSize, typename T>
__device__ inline FloatPack<T, kSize>& pack_at(T* address) {
  return *reinterpret_cast<FloatPack<T, kSize>*>(address);
}

// The same pointer to global memory, but nvcc does not know how it was computed, and so does not do so at each use.
template <typename T>
__device__ inline T* computed_once(T* pointer) {
#ifdef __CUDA_ARCH__
  size_t address = __cvta_generic_to_global(pointer);
  asm("" : "+l"(address));
  return static_cast<T*>(__cvta_global_to_generic(address));
#else
  return pointer;
#endif
}

// Stores a struct of 16 bytes as one word, at an address that is a multiple of its size. nvcc may store anything but an
// intrinsic's operand member by member, above all where another branch does so.
template <typename T>
__device__ inline void store_whole(void* to, const T& value) {
  uint4 raw;
  static_assert(sizeof(value) == sizeof(raw), "stores one vector");
  memcpy(&raw, &value, sizeof(raw));
  __stcg(static_cast<uint4*>(to), raw);
}

// Bit k is set iff element k is non-zero.
template <typename Bits>
__device__ inline uint32_t nonzero_mask(const Vector<Bits>& vector) {
  uint32_t mask = 0;
#pragma unroll
  for (int k = 0; k < Vector<Bits>::kSize; ++k) mask |= static_cast<uint32_t>(is_nonzero(vector.at[k])) << k;
  return mask;
}

using zen::is_nonzero;

template <typename Bits>
__device__ inline bool is_nonzero(const Vector<Bits>& vector) {
  return nonzero_mask(vector) != 0;
}

}  // namespace zen::cuda
