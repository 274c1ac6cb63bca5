// Decoupled look-back: a prefix sum over the chunks of a tensor, in one pass, while the blocks that hold them run.
//
// Chunks are numbered by an atomic ticket, so a chunk's predecessors are running or done, and waiting for them ends. A
// chunk first publishes its own count, and later its end: the count of itself and all before it. There are two ways to
// find what comes before a chunk, for one or more counters at once.
//
// Every state is one 32-bit word, so value and status are never seen apart and no fence is needed. 0 is what the
// launch's memset leaves.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/common/bits.h"

namespace zen::cuda {

// Between two looks at a state that is missing.
constexpr unsigned kBackOffNs = 100;

// At the start of a launch's scratch: the ticket has a cache line of its own, the states follow.
constexpr int64_t kTicketBytes = 128;
constexpr int64_t kStateBytes = sizeof(uint32_t);

// Scratch for the ticket and for the states of `tensors` tensors.
template <typename States>
int64_t state_bytes(int64_t tensors, int64_t chunks, int64_t counters) {
  return kTicketBytes + tensors * States::words(chunks, counters) * kStateBytes;
}

__device__ inline uint32_t observe(const uint32_t* state) {
  return __nv_atomic_load_n(const_cast<uint32_t*>(state), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

__device__ inline void publish(uint32_t* state, uint32_t word) {
  __nv_atomic_store_n(state, word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

// The chunk that this block processes. `slot` is a word of shared memory; ends with a barrier.
__device__ inline uint32_t take_ticket(uint32_t* ticket, uint32_t* slot) {
  if (threadIdx.x == 0) *slot = atomicAdd(ticket, 1u);
  __syncthreads();
  return *slot;
}

// The lanes of a warp that work together: a power of two, so that a warp holds several such groups.
struct LaneGroup {
  int lanes;
  int lane;
  uint32_t shift;  // of the group's first lane in the warp

  __device__ explicit LaneGroup(int lanes)
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

// The lanes that count: up to the first that has reached an end, or all of them.
__device__ inline uint32_t lanes_that_count(uint32_t ending) { return ending ? ending ^ (ending - 1u) : kFullWarp; }

// The states of a tensor's chunks. A chunk reads the states of those just before it, back to one whose end is known:
// few blocks look at a state, but a chain of chunks may wait one for another. A state is, once published,
//   1 + count     until the end is known
//   2^31 | end    from then on; ends are below 2^31
class ChunkChain {
 public:
  // At most 2^kLogLanes lanes look back for each of many counters, and each reads kPerLane states at once. The states
  // of 8 counters of a chunk lie in one sector of the cache, which a warp then reads as a whole.
  static constexpr int kLogLanes = 2;
  static constexpr int kPerLane = 8;

  static ZEN_HOST_DEVICE int64_t words(int64_t chunks, int64_t counters) { return chunks * counters; }

  // `states` are the tensor's words(chunks, counters).
  __device__ ChunkChain(uint32_t* states, uint32_t /*chunks*/, uint32_t counters)
      : states_(states), counters_(counters) {}

  __device__ void publish_count(uint32_t chunk, uint32_t counter, uint32_t count) const {
    publish(state(chunk, counter), 1 + count);
  }
  __device__ void publish_end(uint32_t chunk, uint32_t counter, uint32_t end) const {
    publish(state(chunk, counter), kEnd | end);
  }

  // Count of the chunks before `chunk`. A whole warp calls this, each group of lanes for its own counter; those with
  // wanted == false only join in warp-wide operations. Lane i of a group reads the i-th kReads predecessors, all of
  // them before it examines any.
  template <int kReads = kPerLane>
  __device__ uint32_t look_back(const LaneGroup& lanes, uint32_t counter, uint32_t chunk, bool wanted) const {
    uint32_t sum = 0;
    bool done = !wanted;
    int32_t nearest = static_cast<int32_t>(chunk) - 1 - lanes.lane * kReads;
    while (__any_sync(kFullWarp, !done)) {
      uint32_t seen[kReads];
      const uint32_t* next = states_ + int64_t{nearest} * counters_ + counter;
#pragma unroll
      for (int i = 0; i < kReads; ++i, next -= counters_) {
        seen[i] = kEnd;  // what would precede the first chunk
        if (!done && nearest >= i) seen[i] = observe(next);
      }
      // Skips counts up to the first state that is an end or missing, or the last.
      uint32_t state = seen[0], count = 0;
#pragma unroll
      for (int i = 1; i < kReads; ++i) {
        if (state == 0 || is_end(state)) continue;
        count += counted(state);
        state = seen[i];
      }
      const uint32_t ending = lanes.ballot(is_end(state)), missing = lanes.ballot(state == 0);
      const uint32_t needed = lanes_that_count(ending);
      if (done) continue;
      if (missing & needed) {
        __nanosleep(kBackOffNs);
        continue;
      }
      if ((needed >> lanes.lane) & 1u) sum += count + counted(state);
      done = ending != 0;
      nearest -= lanes.lanes * kReads;
    }
    return lanes.sum(sum);
  }

 private:
  static constexpr uint32_t kEnd = 1u << 31;
  __device__ static bool is_end(uint32_t state) { return (state & kEnd) != 0; }
  __device__ static uint32_t counted(uint32_t state) { return is_end(state) ? state ^ kEnd : state - 1; }

  __device__ uint32_t* state(uint32_t chunk, uint32_t counter) const {
    return states_ + int64_t{chunk} * counters_ + counter;
  }

  uint32_t* const states_;  // [chunks, counters]
  const uint32_t counters_;
};

// The same, where each chunk also adds its count to the sum of its group of consecutive chunks. A chunk reads the
// counts of those before it in its group, and the sums of the groups before that, back to one whose end is known. Up to
// some hundred counters, so many groups are read at once that one of them began before all chunks that now run: then no
// chunk waits for what another one learns. But all blocks look at the last groups' states, so they look again only at
// those that are missing. For one counter these are few words, for many they lie far apart; for some tens, the part of
// the cache that holds them slows all blocks down. The states are
//   a chunk's count    1 + count
//   a group's sum      2^26 * chunks + the sum of their counts
//   a group's end      2^31 | end; ends are below 2^31
class ChunkGroups {
 public:
  static constexpr int kGroupChunks = 32;
  static constexpr int kLogLanes = 3;
  static constexpr int kPerLane = 4;

  static ZEN_HOST_DEVICE int64_t words(int64_t chunks, int64_t counters) {
    return (chunks + 2 * ceil_div(chunks, kGroupChunks)) * counters;
  }

  // `states` are the tensor's words(chunks, counters).
  __device__ ChunkGroups(uint32_t* states, uint32_t chunks, uint32_t counters)
      : counts_(states), groups_(states + int64_t{chunks} * counters), counters_(counters) {}

  // `count` is at most 2^20.
  __device__ void publish_count(uint32_t chunk, uint32_t counter, uint32_t count) const {
    publish(counts_ + int64_t{chunk} * counters_ + counter, 1 + count);
    atomicAdd(group_sum(chunk / kGroupChunks, counter), kOneChunk + count);
  }

  __device__ void publish_end(uint32_t chunk, uint32_t counter, uint32_t end) const {
    if (chunk % kGroupChunks != kGroupChunks - 1) return;
    publish(group_sum(chunk / kGroupChunks, counter) + 1, kEnd | end);
  }

  // As in ChunkChain. Lane i of a group reads the i-th kReads chunks of its chunk's group and the i-th half as many
  // groups before that, all of them before it examines any. It may wait for more groups than it needs: all earlier
  // chunks must publish their counts, whatever ends are known.
  template <int kReads = kPerLane>
  __device__ uint32_t look_back(const LaneGroup& lanes, uint32_t counter, uint32_t chunk, bool wanted) const {
    const int before = wanted ? static_cast<int>(chunk % kGroupChunks) : 0;
    const uint32_t* const counts = counts_ + int64_t{chunk - before} * counters_ + counter;
    uint32_t seen[kReads];
    int first = lanes.lane * kReads;
    const auto load_counts = [&] {
#pragma unroll
      for (int i = 0; i < kReads; ++i) seen[i] = first + i < before ? observe(counts + (first + i) * counters_) : 1;
    };
    load_counts();
    uint32_t sum = count_before_group<(kReads + 1) / 2>(lanes, counter, chunk / kGroupChunks, wanted);
    for (; first < before; load_counts()) {
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        for (; seen[i] == 0; seen[i] = observe(counts + (first + i) * counters_)) __nanosleep(kBackOffNs);
        sum += seen[i] - 1;
      }
      first += lanes.lanes * kReads;
    }
    return lanes.sum(sum);
  }

 private:
  static constexpr uint32_t kOneChunk = 1u << 26;
  static constexpr uint32_t kWholeGroup = kGroupChunks * kOneChunk;
  static constexpr uint32_t kEnd = 1u << 31;

  // This lane's part of it.
  template <int kReads>
  __device__ uint32_t count_before_group(const LaneGroup& lanes, uint32_t counter, uint32_t group, bool wanted) const {
    uint32_t sum = 0;
    bool done = !wanted;
    int32_t nearest = static_cast<int32_t>(group) - 1 - lanes.lane * kReads;
    while (__any_sync(kFullWarp, !done)) {
      uint32_t sums[kReads], ends[kReads];
      const auto load = [&](int i) {
        const uint32_t* const sum = group_sum(nearest - i, counter);
        sums[i] = observe(sum);
        ends[i] = observe(sum + 1);
      };
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        ends[i] = kEnd;  // nothing precedes the first group
        if (!done && nearest >= i) load(i);
      }
      uint32_t counted = 0;
      bool ended = false;  // adds groups up to the first whose end is known
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        if (ended) continue;
        for (; ends[i] == 0 && sums[i] < kWholeGroup; load(i)) __nanosleep(kBackOffNs);
        ended = ends[i] != 0;
        counted += ended ? ends[i] - kEnd : sums[i] - kWholeGroup;
      }
      const uint32_t ending = lanes.ballot(ended);
      if (done) continue;
      if ((lanes_that_count(ending) >> lanes.lane) & 1u) sum += counted;
      done = ending != 0;
      nearest -= lanes.lanes * kReads;
    }
    return sum;
  }

  // A group's sum; its end follows.
  __device__ uint32_t* group_sum(uint32_t group, uint32_t counter) const {
    return groups_ + 2 * (int64_t{group} * counters_ + counter);
  }

  uint32_t* const counts_;  // [chunks, counters]
  uint32_t* const groups_;  // [groups, counters, 2]
  const uint32_t counters_;
};

}  // namespace zen::cuda
