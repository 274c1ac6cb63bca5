// The search for the threshold of a selection, on the device: as in zen_jax/selection.py, but with several steps per
// launch. A launch whose search is over does nothing, so as many are enqueued as the longest search takes.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/common/keys.h"
#include "cuda/launch.cuh"

namespace zen::cuda {

// A step continues in the gap between probes that holds the threshold. A pass over the keys counts for all probes that
// its steps may need: those of the first step, those of the second in each gap of the first, ...
constexpr int kGaps = kProbes + 1;
constexpr int kStepsPerPass = 3;
constexpr int kProbesPerPass = kGaps * kGaps * kGaps - 1;

// Passes after which any search is over. A step leaves a fifth of the gap and at most 4 keys more, so k steps are
// enough for gaps up to 3 + 2 * 5^(k - 1): 14 or 28 steps, and one from a sample.
template <typename Bits>
constexpr int kMostPasses = ((sizeof(Bits) == 4 ? 14 : 28) + 1 + kStepsPerPass - 1) / kStepsPerPass;

// At least `least` keys reach `low`; fewer reach `high`.
template <typename Bits>
struct Search {
  Bits low, high;
  Bits below, above;    // what the first step's probes span, if from_sample
  int32_t least, most;  // a `most` of -1 asks for the key of rank `least` itself
  int32_t reach_low, reach_high;
  uint32_t from_sample;
  uint32_t done;
  uint32_t arrived;                 // blocks that have added to `counts`
  uint32_t counts[kProbesPerPass];  // of this pass: keys that reach a probe but not the next

  __device__ void start(int64_t size, int32_t wanted_least, int32_t wanted_most) {
    low = 0;
    high = kTopKey<Bits>;
    below = above = 0;
    least = wanted_least;
    most = wanted_most;
    reach_low = static_cast<int32_t>(size);
    reach_high = 0;
    from_sample = 0;
    done = !(reach_low > most);
    arrived = 0;
    for (uint32_t& count : counts) count = 0;
  }

  __device__ void start_from(Bits key_below, Bits key_above) {
    below = key_below;
    above = key_above;
    from_sample = 1;
  }

  // One of the probes of a pass, which ascend.
  __device__ Bits probe(int place) const {
    Bits from = low, to = high;
    bool spans = from_sample;
    int left = place + 1;  // its digits in base kGaps say which gap each step enters
    for (int share = (kProbesPerPass + 1) / kGaps;; share /= kGaps) {
      const int gap = left / share;
      left -= gap * share;
      const Bits begin = gap == 0 ? from : probe_within(from, to, gap - 1, spans);
      if (left == 0) return begin;
      to = gap == kProbes ? to : probe_within(from, to, gap, spans);
      from = begin;
      spans = false;
    }
  }

  // The steps of a pass. reach[place] keys reach probes[place].
  __device__ void narrow(const Bits* probes, const uint32_t* reach) {
    int first = -1;
    for (int share = (kProbesPerPass + 1) / kGaps; share > 0 && !done; share /= kGaps) {
      int gap = 0;
      while (gap < kProbes && static_cast<int32_t>(reach[first + (gap + 1) * share]) >= least) ++gap;
      if (gap < kProbes) {
        high = probes[first + (gap + 1) * share];
        reach_high = static_cast<int32_t>(reach[first + (gap + 1) * share]);
      }
      first += gap * share;
      if (gap > 0) {
        low = probes[first];
        reach_low = static_cast<int32_t>(reach[first]);
      }
      done = !(reach_low > most && high - low > 1);
    }
    from_sample = 0;
  }

 private:
  __device__ Bits probe_within(Bits from, Bits to, int i, bool spans) const {
    if (spans) return below + (above - below) / (kProbes - 1) * static_cast<Bits>(i);
    const Bits nth = static_cast<Bits>(i + 1), even = (to - from) / kGaps * nth;
    const Bits probe = from + (even > nth ? even : nth);
    return probe < to ? probe : to;
  }
};

// The shared memory in which a block of a pass counts.
template <typename Bits>
struct SearchShared {
  Bits* probes;           // [kProbesPerPass]
  uint32_t* counts;       // [kProbesPerPass]
  uint32_t* warp_totals;  // [kWarps]
  uint32_t* is_last;      // [1]

  __host__ __device__ explicit SearchShared(SharedArena& arena)
      : probes(arena.take<Bits>(kProbesPerPass)),
        counts(arena.take<uint32_t>(kProbesPerPass)),
        warp_totals(arena.take<uint32_t>(kWarps)),
        is_last(arena.take<uint32_t>(1)) {}
};

// Counts a thread's keys by the last probe that each reaches. Neighbours mostly share that probe, so only whole runs
// are added to the counts that threads share.
template <typename Bits>
class KeyCounter {
 public:
  __device__ explicit KeyCounter(const SearchShared<Bits>& shared) : shared_(shared), end_(shared.probes[0]) {}

  __device__ void count(Bits key) {
    if (key < begin_ || key >= end_) enter(key);
    ++run_;
  }

  __device__ void finish() {
    if (place_ >= 0 && run_ > 0) atomicAdd(shared_.counts + place_, run_);
    run_ = 0;
  }

 private:
  __device__ void enter(Bits key) {
    finish();
    int reached = 0, most = kProbesPerPass;
    while (reached < most) {
      const int middle = (reached + most) / 2;
      if (key >= shared_.probes[middle]) {
        reached = middle + 1;
      } else {
        most = middle;
      }
    }
    place_ = reached - 1;
    begin_ = reached == 0 ? Bits{0} : shared_.probes[reached - 1];
    end_ = reached == kProbesPerPass ? kTopKey<Bits> : shared_.probes[reached];
  }

  const SearchShared<Bits>& shared_;
  int place_ = -1;
  Bits begin_ = 0, end_;
  uint32_t run_ = 0;
};

// One pass over the keys of bits[count]: each of `blocks` blocks counts a share, and this is number `block`. True in
// the threads of the last block to finish, whose shared.counts then holds how many keys reach each of shared.probes.
template <typename Bits>
__device__ bool count_reach(Search<Bits>* search, const SearchShared<Bits>& shared, const Bits* bits, int64_t count,
                            int64_t block, int64_t blocks) {
  constexpr int kInFlight = 8;
  const int place = threadIdx.x;
  const bool has_probe = place < kProbesPerPass;
  if (has_probe) {
    shared.probes[place] = search->probe(place);
    shared.counts[place] = 0;
  }
  __syncthreads();
  KeyCounter<Bits> counter(shared);
  const int64_t step = blocks * kThreads;
  for (int64_t first = block * kThreads + threadIdx.x; first < count; first += kInFlight * step) {
    Bits loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) loaded[i] = first + i * step < count ? bits[first + i * step] : Bits{0};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * step < count) counter.count(key_of(loaded[i]));
    }
  }
  counter.finish();
  __syncthreads();
  if (has_probe && shared.counts[place] > 0) atomicAdd(search->counts + place, shared.counts[place]);
  __syncthreads();
  if (threadIdx.x == 0) {
    // Fences on both sides of the atomic, for the whole block: barriers pass on what this thread has seen.
    __threadfence();
    const bool is_last = atomicAdd(&search->arrived, 1u) == blocks - 1;
    if (is_last) __threadfence();
    *shared.is_last = is_last;
  }
  __syncthreads();
  if (!*shared.is_last) return false;
  const BlockSum sum = block_exclusive_sum(has_probe ? search->counts[place] : 0, shared.warp_totals);
  if (has_probe) {
    shared.counts[place] = sum.total - sum.before;
    search->counts[place] = 0;
  }
  if (threadIdx.x == 0) search->arrived = 0;
  __syncthreads();
  return true;
}

}  // namespace zen::cuda
