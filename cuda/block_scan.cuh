// Prefix sums over the lanes of a warp and the threads of a block, and the lists that they turn bitmaps into.
#pragma once

#include <cstdint>

#include "cuda/launch.cuh"

namespace zen::cuda {

// Divided as unsigned numbers, which takes one instruction each.
__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % kWarpSize); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / kWarpSize); }

__device__ inline uint32_t warp_inclusive_sum(uint32_t value) {
#pragma unroll
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const uint32_t before = __shfl_up_sync(kFullWarp, value, delta);
    if (lane_id() >= delta) value += before;
  }
  return value;
}

struct BlockSum {
  uint32_t before;  // of the threads before this one
  uint32_t total;
};

// Sums `value` over the block; the total is below 2^31. `warp_totals` holds kWarps words that nothing else may use
// until the next barrier after this call; the call itself does not start with one.
__device__ inline BlockSum block_exclusive_sum(uint32_t value, uint32_t* warp_totals) {
  const uint32_t inclusive = warp_inclusive_sum(value);
  if (lane_id() == kWarpSize - 1) warp_totals[warp_id()] = inclusive;
  __syncthreads();
  const uint32_t total = warp_totals[lane_id() % kWarps];  // lanes w and w + kWarps have that of warp w
  const uint32_t before_warp = __reduce_add_sync(kFullWarp, lane_id() < warp_id() ? total : 0);
  return {before_warp + inclusive - value, __reduce_add_sync(kFullWarp, total) / (kWarpSize / kWarps)};
}

// Writes the offsets of a word's set bits in order, where `rank` set bits come before the word and `first` is the
// offset of its first bit.
__device__ inline void expand_word(uint32_t word, uint32_t rank, uint32_t first, uint16_t* offsets) {
  for (; word != 0; word &= word - 1) {
    offsets[rank++] = static_cast<uint16_t>(first + __ffs(static_cast<int>(word)) - 1);
  }
}

}  // namespace zen::cuda
