// Prefix sums over the lanes of a warp and the threads of a block.
#pragma once

#include <cstdint>

#include "cuda/launch.cuh"

namespace zen::cuda {

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarpSize; }

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

// Sums `value` over the block. `warp_totals` holds kWarps words that nothing else uses until the next barrier after
// this call; the call itself starts without one.
__device__ inline BlockSum block_exclusive_sum(uint32_t value, uint32_t* warp_totals) {
  const uint32_t inclusive = warp_inclusive_sum(value);
  if (lane_id() == kWarpSize - 1) warp_totals[warp_id()] = inclusive;
  __syncthreads();
  BlockSum sum = {inclusive - value, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp_id()) sum.before += warp_totals[w];
    sum.total += warp_totals[w];
  }
  return sum;
}

}  // namespace zen::cuda
