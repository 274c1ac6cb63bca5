// The search for the threshold of a selection, on the device: as zen_jax/selection.py makes it, a launch for each pass.
// A launch whose search is over does nothing, so as many are enqueued as the longest search takes.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/launch.cuh"

namespace zen::cuda {

constexpr int kProbes = 4;

// The key that none reaches.
template <typename Bits>
constexpr Bits kTopKey = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

template <typename Bits>
__device__ inline Bits key_of(Bits bits) {
  return bits & static_cast<Bits>(kTopKey<Bits> - 1);
}

// At least `least` keys reach `low`, fewer than that reach `high`.
template <typename Bits>
struct Search {
  Bits low, high;
  Bits probes[kProbes];
  int32_t least, most;  // a `most` of -1 asks for the key of that rank itself
  int32_t reach_low, reach_high;
  int32_t reach[kProbes];  // of this pass
  uint32_t arrived;        // blocks that have added to `reach`
  uint32_t done;

  __device__ void start(int64_t size, int32_t wanted_least, int32_t wanted_most) {
    low = 0;
    high = kTopKey<Bits>;
    least = wanted_least;
    most = wanted_most;
    reach_low = static_cast<int32_t>(size);
    reach_high = 0;
    arrived = 0;
    for (int i = 0; i < kProbes; ++i) reach[i] = 0;
    probe_evenly();
    done = !(reach_low > most);
  }

  __device__ void probe_evenly() {
    for (int i = 0; i < kProbes; ++i) {
      const Bits nth = static_cast<Bits>(i + 1), even = (high - low) / (kProbes + 1) * nth;
      const Bits probe = low + (even > nth ? even : nth);
      probes[i] = probe < high ? probe : high;
    }
  }

  __device__ void probe_from(Bits below, Bits above) {
    for (int i = 0; i < kProbes; ++i) probes[i] = below + (above - below) / (kProbes - 1) * static_cast<Bits>(i);
  }

  __device__ void narrow() {
    for (int i = 0; i < kProbes; ++i) {
      if (reach[i] >= least) {
        if (probes[i] > low) low = probes[i];
        if (reach[i] < reach_low) reach_low = reach[i];
      } else {
        if (probes[i] < high) high = probes[i];
        if (reach[i] > reach_high) reach_high = reach[i];
      }
      reach[i] = 0;
    }
    arrived = 0;
    done = !(reach_low > most && high - low > 1);
    probe_evenly();
  }
};

// Passes after which any search is over: each leaves a fifth of the gap, rounded up.
template <typename Bits>
constexpr int kMostPasses = sizeof(Bits) == 4 ? 16 : 30;

// Adds a block's counts to the search's. True in thread 0 of the last of `blocks` blocks, which sees all of them.
template <typename Bits>
__device__ bool add_reach(Search<Bits>* search, const uint32_t (&counts)[kProbes], uint32_t blocks,
                          uint32_t* warp_totals) {
  uint32_t totals[kProbes];
#pragma unroll
  for (int i = 0; i < kProbes; ++i) {
    totals[i] = block_exclusive_sum(counts[i], warp_totals).total;
    __syncthreads();
  }
  if (threadIdx.x != 0) return false;
#pragma unroll
  for (int i = 0; i < kProbes; ++i) atomicAdd(search->reach + i, static_cast<int32_t>(totals[i]));
  __threadfence();
  if (atomicAdd(&search->arrived, 1u) != blocks - 1) return false;
  __threadfence();
  return true;
}

}  // namespace zen::cuda
