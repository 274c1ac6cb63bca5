// The one-pass partition of a list's entries. A block keeps counters for only so many servers; the buckets of more are
// filled by one launch after another, each of which skips the entries of the others.
#include "cuda/partition_coo.h"

#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/partition_block.cuh"

namespace zen::cuda {
namespace {

constexpr int64_t kServersAtOnce = 1024;
constexpr int kRows = 16;  // of 32 entries each, that a warp takes
constexpr int kPerWarp = kRows * kWarpSize;
constexpr int64_t kPerBlock = kWarps * kPerWarp;
static_assert(kPerBlock <= SortShared::kMaxUnits, "counts of a chunk have 16 bits");

struct ListParams : PartitionParams {
  const int32_t* indices;
  const int32_t* count;
};

// The servers of a chunk's listed entries.
struct ListedUnits {
  const uint16_t* servers;

  __device__ uint32_t server(uint32_t j) const { return servers[j]; }
};

// A block's shared memory, besides that for buckets.
struct ListShared {
  SortShared lists;
  uint16_t* servers;  // of the chunk's listed entries

  __host__ __device__ ListShared(SharedArena& arena, const ListParams& params)
      : lists(arena, params.servers, kPerBlock), servers(arena.take<uint16_t>(kPerBlock)) {}
};

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) partition_list(const __grid_constant__ ListParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const BucketsShared buckets(arena, params);
  const ListShared shared(arena, params);
  const SortShared& lists = shared.lists;
  uint16_t* const servers = shared.servers;

  PartitionBlock<ChunkChain> block(params, lists, buckets, kPerBlock);
  const uint32_t n = static_cast<uint32_t>(params.problem.n);
  const int64_t first = block.batch() * params.problem.units + block.first_unit();
  const int64_t listed = min(static_cast<int64_t>(params.count[block.batch()]), params.problem.units);
  const int64_t left = listed - block.first_unit();
  const int32_t* const indices = params.indices + first;
  const auto offset = [](int row) { return warp_id() * kPerWarp + row * kWarpSize + lane_id(); };
  uint32_t index[kRows], server[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) index[row] = offset(row) < left ? indices[offset(row)] : 0;
  uint32_t mine = 0, of_warp = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const uint32_t tile = index[row] / n, rotation = tile_rotation(tile, n, params.seed);
    server[row] = server_in_tile(index[row] - tile * n, rotation, n) - params.first_server;
    const bool taken = offset(row) < left && server[row] < params.servers;
    mine |= static_cast<uint32_t>(taken) << row;
    of_warp += __popc(__ballot_sync(kFullWarp, taken));
  }
  const BlockSum sum = block_exclusive_sum(lane_id() == kWarpSize - 1 ? of_warp : 0, lists.warp_totals);
  uint32_t first_of_row = sum.before;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const bool taken = mine >> row & 1;
    const uint32_t of_row = __ballot_sync(kFullWarp, taken);
    const uint32_t rank = first_of_row + __popc(of_row & ((1u << lane_id()) - 1u));
    if (taken) {
      lists.offsets[rank] = static_cast<uint16_t>(offset(row));
      servers[rank] = static_cast<uint16_t>(server[row]);
    }
    first_of_row += __popc(of_row);
  }
  block.sort(sum.total, ListedUnits{servers});

  const Bits* const from = static_cast<const Bits*>(params.x) + first;
  Bits* const values = static_cast<Bits*>(params.values);
  for (uint32_t s = threadIdx.x; s < sum.total; s += kThreads) {
    const uint32_t j = lists.order[s];
    const int64_t slot = block.slot(s, servers[j]);
    if (slot < 0) continue;
    params.positions[slot] = static_cast<int32_t>(static_cast<uint32_t>(indices[lists.offsets[j]]) / n);
    values[slot] = from[lists.offsets[j]];
  }
}

}  // namespace

int64_t partition_coo_scratch_bytes(int64_t entries, int64_t n) {
  return state_bytes<ChunkChain>(1, ceil_div(entries, kPerBlock), std::min(n, kServersAtOnce));
}

cudaError_t partition_coo(const PartitionProblem& problem, Element element, uint32_t seed, const int32_t* d_indices,
                          const void* d_values, const int32_t* d_count, int32_t* d_positions, void* d_bucket_values,
                          int32_t* d_counts, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  if (problem.units == 0) return cudaMemsetAsync(d_counts, 0, problem.batch * problem.n * sizeof(int32_t), stream);
  ListParams params = {
      partition_params(problem, kPerBlock, seed, d_values, d_positions, d_bucket_values, d_counts, d_scratch),
      d_indices, d_count};
  const int64_t blocks = problem.batch * params.chunks;
  for (int64_t server = 0; server < problem.n; server += kServersAtOnce) {
    params.first_server = static_cast<uint32_t>(server);
    params.servers = static_cast<uint32_t>(std::min(kServersAtOnce, problem.n - server));
    const size_t shared = shared_bytes<BucketsShared, ListShared>(params);
    ZEN_RETURN_IF_ERROR(zero_states<ChunkChain>(params, stream));
    ZEN_RETURN_IF_ERROR(visit_bits(element, [&](auto bits) {
      return launch(partition_list<decltype(bits)>, blocks, shared, stream, params);
    }));
  }
  return cudaSuccess;
}

}  // namespace zen::cuda
