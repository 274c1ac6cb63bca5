// Where each block's share of a gapless output begins: chunks in ticket order, one look-back for their counts.
#pragma once

#include <cstdint>

#include "cuda/look_back.cuh"

namespace zen::cuda {

struct CompactionParams {
  int64_t chunks;    // of one batch item
  int64_t capacity;  // units that an item's output has room for
  int32_t* count;    // [batch], its true number of units
  uint32_t* ticket;
  uint32_t* states;  // of ChunkGroups, for each item
};

inline int64_t compaction_bytes(int64_t batch, int64_t chunks) { return state_bytes<ChunkGroups>(batch, chunks, 1); }

// Describes the compaction that keeps its ticket and states in `d_scratch`, and enqueues their zeroing.
inline cudaError_t begin_compaction(int64_t batch, int64_t chunks, int64_t capacity, int32_t* d_count, void* d_scratch,
                                    cudaStream_t stream, CompactionParams* params) {
  auto* const ticket = static_cast<uint32_t*>(d_scratch);
  *params = {chunks, capacity, d_count, ticket, ticket + kTicketBytes / kStateBytes};
  return cudaMemsetAsync(d_scratch, 0, compaction_bytes(batch, chunks), stream);
}

struct CompactionShared {
  uint32_t* ticket;       // [1]
  uint32_t* before;       // [1], units in the chunks before this one
  uint32_t* warp_totals;  // [kWarps], to count this chunk's

  __host__ __device__ explicit CompactionShared(SharedArena& arena)
      : ticket(arena.take<uint32_t>(1)), before(arena.take<uint32_t>(1)), warp_totals(arena.take<uint32_t>(kWarps)) {}
};

// The chunk of this block, and its place among the others.
struct CompactionBlock {
  const CompactionParams& params;
  const CompactionShared& shared;
  uint32_t batch;
  uint32_t chunk;
  uint32_t chunks;  // of this batch item

  // Takes the next chunk; has a barrier.
  __device__ CompactionBlock(const CompactionParams& params, const CompactionShared& shared)
      : params(params), shared(shared), chunks(static_cast<uint32_t>(params.chunks)) {
    const uint32_t id = take_ticket(params.ticket, shared.ticket);
    batch = id / chunks;
    chunk = id % chunks;
  }

  // A chunk that was taken in another way, after those before it, of an item with at most params.chunks chunks.
  __device__ CompactionBlock(const CompactionParams& params, const CompactionShared& shared, uint32_t batch,
                             uint32_t chunk, uint32_t chunks)
      : params(params), shared(shared), batch(batch), chunk(chunk), chunks(chunks) {}

  // Call as soon as the number of units is known, so that the chunks after this one need not wait.
  __device__ void announce(uint32_t units) const {
    if (threadIdx.x == 0) states().publish_count(chunk, 0, units);
  }

  // Returns how many units come before this chunk's `units`. Has a barrier.
  __device__ int64_t place(uint32_t units) const {
    if (warp_id() == 0) {
      const uint32_t before = states().look_back<1>(LaneGroup(kWarpSize), 0, chunk, true);
      if (lane_id() == 0) {
        states().publish_end(chunk, 0, before + units);
        *shared.before = before;
        if (chunk == chunks - 1) params.count[batch] = static_cast<int32_t>(before + units);
      }
    }
    __syncthreads();
    return *shared.before;
  }

  // How many of this chunk's `units` fit, after `before` others.
  __device__ uint32_t fitting(int64_t before, uint32_t units) const {
    const int64_t room = params.capacity - before;
    return room <= 0 ? 0 : room < units ? static_cast<uint32_t>(room) : units;
  }

 private:
  __device__ ChunkGroups states() const {
    const auto most = static_cast<uint32_t>(params.chunks);
    return ChunkGroups(params.states + batch * ChunkGroups::words(most, 1), most, 1);
  }
};

}  // namespace zen::cuda
