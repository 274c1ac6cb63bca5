// What a block of a one-pass partition does once it knows which units of its chunk to move: it sorts them by server,
// and learns from the blocks before it where each server's run goes.
#pragma once

#include <cstdint>

#include "cuda/common/bits.h"
#include "cuda/look_back.cuh"
#include "cuda/partition.h"
#include "cuda/server_sort.cuh"

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

// A block's shared memory besides that for sorting, for n = params.servers.
struct BucketsShared {
  uint32_t* ticket;  // [1]
  uint32_t* ends;    // [n], before which places in `order` the server's bucket has room
  int64_t* shifts;   // [n], from a place in `order` to a slot, in units from the start of positions and values

  __host__ __device__ BucketsShared(SharedArena& arena, const PartitionParams& params)
      : ticket(arena.take<uint32_t>(1)),
        ends(arena.take<uint32_t>(params.servers)),
        shifts(arena.take<int64_t>(params.servers)) {}
};

template <typename States>
class PartitionBlock {
 public:
  // Takes the next chunk; has a barrier.
  __device__ PartitionBlock(const PartitionParams& params, const SortShared& lists, const BucketsShared& buckets,
                            int64_t units_per_chunk)
      : params_(params), lists_(lists), buckets_(buckets), sort_(lists, params.servers), n_(params.servers) {
    const uint32_t id = take_ticket(params.ticket, buckets.ticket), chunks = static_cast<uint32_t>(params.chunks);
    batch_ = id / chunks;
    chunk_ = id % chunks;
    first_unit_ = chunk_ * units_per_chunk;
  }

  __device__ int64_t batch() const { return batch_; }
  __device__ int64_t first_unit() const { return first_unit_; }

  // Sorts `count` units, as ServerSort does. Starts and ends with a barrier.
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
    sort_.sort(begin, end, units,
               [&](uint32_t server, uint32_t count) { states().publish_count(chunk_, server, count); });
    find_buckets();
    __syncthreads();
  }

  // The slot, in units from the start of positions and values, for place `s` of lists.order, whose unit goes to
  // `server`; -1 if the bucket is full.
  __device__ int64_t slot(uint32_t s, uint32_t server) const {
    return s < buckets_.ends[server] ? s + buckets_.shifts[server] : -1;
  }

 private:
  __device__ States states() const {
    const auto chunks = static_cast<uint32_t>(params_.chunks);
    return States(params_.states + batch_ * States::words(chunks, n_), chunks, n_);
  }
  __device__ int64_t bucket(uint32_t server) const {
    return batch_ * params_.problem.n + params_.first_server + server;
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
      const uint32_t start = lists_.starts[server], count = lists_.starts[server + 1] - start;
      const uint32_t through = before + count;
      states().publish_end(chunk_, server, through);
      const int64_t capacity = params_.problem.capacity, left = capacity - before;
      buckets_.shifts[server] = bucket(server) * capacity + before - start;
      buckets_.ends[server] = start + (left <= 0 ? 0 : left < count ? static_cast<uint32_t>(left) : count);
      if (chunk_ == params_.chunks - 1) params_.counts[bucket(server)] = static_cast<int32_t>(through);
    }
  }

  const PartitionParams& params_;
  const SortShared& lists_;
  const BucketsShared& buckets_;
  const ServerSort sort_;
  const uint32_t n_;
  uint32_t batch_;
  uint32_t chunk_;
  int64_t first_unit_;
};

}  // namespace zen::cuda
