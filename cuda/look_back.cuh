// Decoupled look-back: a prefix sum over the chunks of a tensor, in one pass, while the blocks that hold them run.
//
// Chunks are numbered by an atomic ticket, so a chunk's predecessors are running or done, and waiting for them ends.
// A chunk first publishes its own count (partial) and later the count of itself and all before it (inclusive). The
// state is one 32-bit word, so value and status are never seen apart and no fence is needed:
//   0              nothing yet (what the launch's memset leaves)
//   1 + count      partial
//   2^31 | count   inclusive; counts are below 2^31
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/common/hash.h"

namespace zen::cuda {

constexpr uint32_t kInclusive = 0x80000000u;

// Between two looks at a state that is missing: short compared with the load that follows.
constexpr unsigned kBackOffNs = 32;

// At the start of a launch's scratch: the ticket has a cache line of its own, the states follow.
constexpr int64_t kTicketBytes = 128;
constexpr int64_t kStateBytes = sizeof(uint32_t);

ZEN_HOST_DEVICE uint32_t partial_state(uint32_t count) { return count + 1; }
ZEN_HOST_DEVICE uint32_t inclusive_state(uint32_t count) { return kInclusive | count; }
ZEN_HOST_DEVICE bool is_published(uint32_t state) { return state != 0; }
ZEN_HOST_DEVICE bool is_inclusive(uint32_t state) { return (state & kInclusive) != 0; }
ZEN_HOST_DEVICE uint32_t state_count(uint32_t state) { return is_inclusive(state) ? state ^ kInclusive : state - 1; }

__device__ inline void publish(uint32_t* state, uint32_t word) {
  __nv_atomic_store_n(state, word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

__device__ inline uint32_t observe(const uint32_t* state) {
  return __nv_atomic_load_n(const_cast<uint32_t*>(state), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

// The chunk that this block processes. `slot` is a word of shared memory; ends with a barrier.
__device__ inline uint32_t take_ticket(uint32_t* ticket, uint32_t* slot) {
  if (threadIdx.x == 0) *slot = atomicAdd(ticket, 1u);
  __syncthreads();
  return *slot;
}

// The lanes of a warp that look back together for one counter: a power of two, so that a warp can look back for several
// counters at once.
struct LookBackGroup {
  int lanes;
  int lane;
  uint32_t shift;  // of the group's first lane in the warp

  __device__ explicit LookBackGroup(int lanes)
      : lanes(lanes), lane(lane_id() & (lanes - 1)), shift(lane_id() - lane) {}

  __device__ uint32_t ballot(bool predicate) const {
    const uint32_t mine = __ballot_sync(kFullWarp, predicate) >> shift;
    return lanes == kWarpSize ? mine : mine & ((1u << lanes) - 1u);
  }
  __device__ uint32_t sum(uint32_t value) const {
    for (int delta = 1; delta < lanes; delta *= 2) value += __shfl_xor_sync(kFullWarp, value, delta);
    return value;
  }
};

// Count of the chunks before `chunk`, for the counter whose states lie at states[chunk * stride]. A whole warp calls
// this, each group for its own counter; groups with wanted == false only join in warp-wide operations. Lane i of a
// group reads the i-th kPerLane predecessors, all of them before it examines any.
template <int kPerLane>
__device__ uint32_t look_back(const LookBackGroup& group, const uint32_t* states, int64_t stride, int64_t chunk,
                              bool wanted) {
  uint32_t sum = 0;
  bool done = !wanted;
  int64_t nearest = chunk - 1 - group.lane * kPerLane;
  while (__any_sync(kFullWarp, !done)) {
    uint32_t seen[kPerLane];
    const uint32_t* next = states + nearest * stride;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i, next -= stride) {
      seen[i] = inclusive_state(0);  // what would precede the first chunk
      if (!done && nearest >= i) seen[i] = observe(next);
    }
    // Skips the partial states up to the first that is inclusive or missing, or the last.
    uint32_t state = seen[0], count = 0;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (!is_published(state) || is_inclusive(state)) continue;
      count += state_count(state);
      state = seen[i];
    }
    const uint32_t inclusive = group.ballot(is_inclusive(state));
    const uint32_t missing = group.ballot(!is_published(state));
    // Bits of the lanes that count: up to the nearest one with an inclusive state, or all of the group.
    const uint32_t needed = inclusive ? inclusive ^ (inclusive - 1u) : kFullWarp;
    if (done) continue;
    if (missing & needed) {
      __nanosleep(kBackOffNs);
      continue;
    }
    if ((needed >> group.lane) & 1u) sum += count + state_count(state);
    if (inclusive) {
      done = true;
    } else {
      nearest -= group.lanes * kPerLane;
    }
  }
  return group.sum(sum);
}

// The same for a block with one counter; only the first warp may call it. Publishes this chunk's inclusive state. It
// reads kRows rows of 32 states at once: few, as the states of all chunks that look back lie in a few lines of a cache.
template <int kRows>
__device__ uint32_t look_back_one(uint32_t* states, int64_t chunk, uint32_t count) {
  uint32_t sum = 0;
  bool done = chunk == 0;
  for (int32_t nearest = static_cast<int32_t>(chunk) - 1 - lane_id(); !done;) {
    uint32_t seen[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int32_t at = nearest - i * kWarpSize;
      seen[i] = at < 0 ? inclusive_state(0) : observe(states + at);  // nothing comes before the first chunk
    }
    bool missing = false;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t inclusive = __ballot_sync(kFullWarp, is_inclusive(seen[i]));
      const uint32_t needed = inclusive ? inclusive ^ (inclusive - 1u) : kFullWarp;
      missing |= (__ballot_sync(kFullWarp, !is_published(seen[i])) & needed) != 0;
      if (done || missing) continue;
      if ((needed >> lane_id()) & 1u) sum += state_count(seen[i]);
      done = inclusive != 0;
      nearest -= kWarpSize;
    }
    if (!done && missing) __nanosleep(kBackOffNs);
  }
  const uint32_t before = __reduce_add_sync(kFullWarp, sum);
  if (lane_id() == 0) publish(states + chunk, inclusive_state(before + count));
  return before;
}

}  // namespace zen::cuda
