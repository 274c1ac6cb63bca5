// What a block of a one-pass partition does once it knows which units of its chunk to move: it sorts them by server,
// keeping their order, and learns from the blocks before it where each server's run goes.
#pragma once

#include <cstdint>

#include "cuda/common/bits.h"
#include "cuda/look_back.cuh"
#include "cuda/partition.h"

namespace zen::cuda {

struct PartitionParams {
  PartitionProblem problem;
  uint32_t first_server, servers;  // that this launch serves
  uint32_t seed;
  int32_t rows_per_chunk;  // of the kernel for rows
  int64_t chunks;          // of one batch item
  const void* x;
  int32_t* positions;
  void* values;
  int32_t* counts;
  uint32_t* ticket;
  uint32_t* states;  // for each item, of ChunkChain or ChunkGroups
};

// The parameters of a launch that serves all servers.
inline PartitionParams partition_params(const PartitionProblem& problem, int64_t units_per_chunk, uint32_t seed,
                                        const void* d_x, int32_t* d_positions, void* d_values, int32_t* d_counts,
                                        void* d_scratch) {
  uint32_t* const ticket = static_cast<uint32_t*>(d_scratch);
  PartitionParams params;
  params.problem = problem;
  params.first_server = 0;
  params.servers = static_cast<uint32_t>(problem.n);
  params.seed = seed;
  params.rows_per_chunk = static_cast<int32_t>(units_per_chunk);
  params.chunks = ceil_div(problem.units, units_per_chunk);
  params.x = d_x;
  params.positions = d_positions;
  params.values = d_values;
  params.counts = d_counts;
  params.ticket = ticket;
  params.states = ticket + kTicketBytes / kStateBytes;
  return params;
}

template <typename States>
cudaError_t zero_states(const PartitionParams& params, cudaStream_t stream) {
  return cudaMemsetAsync(params.ticket, 0, state_bytes<States>(params.problem.batch, params.chunks, params.servers),
                         stream);
}

// A block's shared memory, for `n` servers. Lists of units hold 16-bit offsets; `order` lists ranks in `offsets`, by
// server.
struct PartitionShared {
  // A row of the histogram is padded to a whole number of words: threads handle two servers, packed in one word, at a
  // time. No field overflows, as a chunk has at most 2^14 units.
  static constexpr int kMaxUnits = 1 << 14;

  uint32_t* warp_totals;  // [kWarps]
  uint32_t* ticket;       // [1]
  uint32_t* starts;       // [n + 1], where each server's run starts in `order`
  uint32_t* ends;         // [n], before which places in `order` the server's bucket has room
  int64_t* shifts;        // [n], from a place in `order` to a slot, in units from the start of positions and values
  uint16_t* histogram;    // [kWarps, n rounded up to even]
  uint16_t* offsets;      // [units]
  uint16_t* order;        // [units]

  __host__ __device__ PartitionShared(SharedArena& arena, uint32_t n, uint32_t units) {
    warp_totals = arena.take<uint32_t>(kWarps);
    ticket = arena.take<uint32_t>(1);
    starts = arena.take<uint32_t>(n + 1);
    ends = arena.take<uint32_t>(n);
    shifts = arena.take<int64_t>(n);
    histogram = arena.take<uint16_t>(kWarps * histogram_stride(n));
    offsets = arena.take<uint16_t>(units);
    order = arena.take<uint16_t>(units);
  }

  __host__ __device__ static uint32_t histogram_stride(uint32_t n) { return (n + 1) / 2 * 2; }
};

// Units are listed in shared.offsets; units.server(j) is the j-th unit's server, counted from this launch's first.
template <typename States>
class PartitionBlock {
 public:
  // Takes the next chunk; has a barrier, after which the histogram may be used.
  __device__ PartitionBlock(const PartitionParams& params, const PartitionShared& shared, int64_t units_per_chunk)
      : params_(params), shared_(shared), n_(params.servers) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(shared.histogram);
    for (uint32_t i = threadIdx.x; i < kWarps * words_per_row(); i += kThreads) words[i] = 0;
    const uint32_t id = take_ticket(params.ticket, shared.ticket), chunks = static_cast<uint32_t>(params.chunks);
    batch_ = id / chunks;
    chunk_ = id % chunks;
    first_unit_ = chunk_ * units_per_chunk;
  }

  __device__ int64_t batch() const { return batch_; }
  __device__ int64_t first_unit() const { return first_unit_; }

  // Sorts `count` units by server into shared.order. Starts and ends with a barrier.
  template <typename Units>
  __device__ void sort(uint32_t count, const Units& units) {
    const uint32_t per_warp = (count + kThreads - 1) / kThreads * kWarpSize;
    const uint32_t begin = warp_id() * per_warp;
    __syncthreads();
    sort(begin, min(count, begin + per_warp), units);
  }

  // The same where each warp sorts units begin .. end - 1, which follow those of the warp before. Ends with a barrier.
  template <typename Units>
  __device__ void sort(uint32_t begin, uint32_t end, const Units& units) {
    count_servers(begin, end, units);
    __syncthreads();
    publish_counts_and_place_runs();
    __syncthreads();
    rank(begin, end, units);
    find_buckets();
    __syncthreads();
  }

  // The slot, in units from the start of positions and values, for place `s` of shared.order, whose unit goes to
  // `server`; -1 if the bucket is full.
  __device__ int64_t slot(uint32_t s, uint32_t server) const {
    return s < shared_.ends[server] ? s + shared_.shifts[server] : -1;
  }

 private:
  __device__ States states() const {
    const auto chunks = static_cast<uint32_t>(params_.chunks);
    return States(params_.states + batch_ * States::words(chunks, n_), chunks, n_);
  }
  __device__ uint32_t words_per_row() const { return PartitionShared::histogram_stride(n_) / 2; }
  __device__ int64_t bucket(uint32_t server) const {
    return batch_ * params_.problem.n + params_.first_server + server;
  }

  // Each warp counts its own part of the list.
  template <typename Units>
  __device__ void count_servers(uint32_t begin, uint32_t end, const Units& units) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(shared_.histogram) + warp_id() * words_per_row();
    for (uint32_t j = begin + lane_id(); j < end; j += kWarpSize) {
      const uint32_t server = units.server(j);
      atomicAdd(words + server / 2, server % 2 ? 1u << 16 : 1u);
    }
  }

  // Publishes the chunk's partial counts, then turns the histogram into the places in `order` at which each warp's run
  // of each server starts.
  __device__ void publish_counts_and_place_runs() {
    const uint32_t pair = threadIdx.x;
    uint32_t* const column = reinterpret_cast<uint32_t*>(shared_.histogram) + pair;
    const uint32_t row = words_per_row();
    uint32_t packed = 0;
    if (pair < row) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) packed += column[w * row];
    }
    const uint32_t low = packed & 0xffffu, high = packed >> 16;
    if (2 * pair < n_) states().publish_count(chunk_, 2 * pair, low);
    if (2 * pair + 1 < n_) states().publish_count(chunk_, 2 * pair + 1, high);

    const bool one_warp = row <= kWarpSize;
    if (one_warp && warp_id() > 0) return;
    const uint32_t first = one_warp ? warp_inclusive_sum(low + high) - low - high
                                    : block_exclusive_sum(low + high, shared_.warp_totals).before;
    if (pair >= row) return;
    constexpr int kAtOnce = 8;
    uint32_t start = first | (first + low) << 16;
    for (int w = 0; w < kWarps; w += kAtOnce) {
      uint32_t counts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) counts[i] = column[(w + i) * row];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        column[(w + i) * row] = start;
        start += counts[i];
      }
    }
    shared_.starts[2 * pair] = first;
    if (2 * pair + 1 < n_) shared_.starts[2 * pair + 1] = first + low;
    if (pair == row - 1) shared_.starts[n_] = first + low + high;
  }

  // A stable counting sort within the warp's part: equal servers among 32 neighbours keep their order, as do rounds.
  template <typename Units>
  __device__ void rank(uint32_t begin, uint32_t end, const Units& units) {
    uint16_t* const next = shared_.histogram + warp_id() * PartitionShared::histogram_stride(n_);
    for (uint32_t base = begin; base < end; base += kWarpSize) {
      const uint32_t j = base + lane_id();
      const bool active = j < end;
      const uint32_t server = active ? units.server(j) : n_;
      const uint32_t peers = __match_any_sync(kFullWarp, server);
      const uint32_t before = __popc(peers & ((1u << lane_id()) - 1u));
      if (active) shared_.order[next[server] + before] = static_cast<uint16_t>(j);
      __syncwarp();
      if (active && before == 0) next[server] += static_cast<uint16_t>(__popc(peers));
      __syncwarp();
    }
  }

  // Looks back for all servers at once.
  __device__ void find_buckets() {
    int log_lanes = States::kLogLanes;
    while (log_lanes > 0 && n_ << log_lanes > kThreads) --log_lanes;
    const LaneGroup group(1 << log_lanes);
    for (uint32_t first = warp_id() * kWarpSize >> log_lanes; first < n_; first += kThreads >> log_lanes) {
      const uint32_t server = first + (lane_id() >> log_lanes);
      const bool wanted = server < n_;
      const uint32_t before = states().look_back(group, server, chunk_, wanted);
      if (!wanted || group.lane != 0) continue;
      const uint32_t start = shared_.starts[server], count = shared_.starts[server + 1] - start;
      const uint32_t through = before + count;
      states().publish_end(chunk_, server, through);
      const int64_t capacity = params_.problem.capacity, left = capacity - before;
      shared_.shifts[server] = bucket(server) * capacity + before - start;
      shared_.ends[server] = start + (left <= 0 ? 0 : left < count ? static_cast<uint32_t>(left) : count);
      if (chunk_ == params_.chunks - 1) params_.counts[bucket(server)] = static_cast<int32_t>(through);
    }
  }

  const PartitionParams& params_;
  const PartitionShared& shared_;
  const uint32_t n_;
  uint32_t batch_;
  uint32_t chunk_;
  int64_t first_unit_;
};

}  // namespace zen::cuda
