#include <algorithm>
#include <type_traits>

#include "cuda/common/divide.h"
#include "cuda/partition.h"
#include "cuda/partition_elements.cuh"
#include "cuda/partition_runs.cuh"
#include "cuda/partition_two_pass.h"
#include "cuda/rows.cuh"

namespace zen::cuda {
namespace {

// Runs take three launches more. That this many chunks for each multiprocessor are worth them is an estimate.
constexpr int64_t kLeastChunksForRuns = 24;

// The chain is faster for 16 servers, and groups are for 128; in between it has not been measured.
constexpr int64_t kMostServersInChain = 32;

template <typename States>
constexpr int kBlocks = std::is_same_v<States, ChunkChain> ? 3 : 2;  // for each multiprocessor

template <typename Bits, typename States>
__global__ void __launch_bounds__(kThreads, kBlocks<States>)
    partition_elements(const __grid_constant__ DenseParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const BucketsShared buckets(arena, params);
  ElementsShared<Bits> shared(arena, params);
  StagedChunk<Bits> chunk = shared.chunk();

  PartitionBlock<States> block(params, shared.lists, buckets, StagedChunk<Bits>::kPerBlock);
  const Bits* const x = static_cast<const Bits*>(params.x) + block.batch() * params.problem.units;
  chunk.load(x, block.first_unit(), params.problem.units);
  const ChunkStart start(block.first_unit(), params.n.divisor);
  with_rotations(params, start, shared.table, [&](const auto& rotations) {
    const auto elements = list_nonzeros(&chunk, x + block.first_unit(), &shared);
    const ChunkUnits units(params.n, shared.lists.offsets, start, rotations);
    block.sort(chunk.warp_begin(), chunk.warp_end(), units);

    Bits* const values = static_cast<Bits*>(params.values);
    for (uint32_t s = threadIdx.x; s < chunk.nonzeros(); s += kThreads) {
      const uint32_t j = shared.lists.order[s];
      const UnitPlace place = units.place(j);
      const int64_t slot = block.slot(s, place.server);
      if (slot < 0) continue;
      params.positions[slot] = static_cast<int32_t>(place.tile);
      values[slot] = elements[shared.lists.offsets[j]];
    }
  });
}

// A block's shared memory in partition_rows, besides that for buckets.
struct RowsShared {
  SortShared lists;
  uint32_t* words;  // the bitmap of the chunk's rows

  __host__ __device__ RowsShared(SharedArena& arena, const DenseParams& params)
      : lists(arena, params.servers, params.rows_per_chunk),
        words(arena.take<uint32_t>(bitmap_words(params.rows_per_chunk))) {}
};

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) partition_rows(const __grid_constant__ DenseParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const BucketsShared buckets(arena, params);
  const RowsShared shared(arena, params);
  const SortShared& lists = shared.lists;

  const int word_count = static_cast<int>(bitmap_words(params.rows_per_chunk));
  if (threadIdx.x < word_count) shared.words[threadIdx.x] = 0;
  PartitionBlock<ChunkChain> block(params, lists, buckets, params.rows_per_chunk);
  const int64_t width = params.problem.width;
  const int64_t left = params.problem.units - block.first_unit();
  const Bits* const rows =
      static_cast<const Bits*>(params.x) + (block.batch() * params.problem.units + block.first_unit()) * width;
  mark_nonzero_rows(rows, left < params.rows_per_chunk ? left : params.rows_per_chunk, width, shared.words);
  __syncthreads();
  const uint32_t word = threadIdx.x < word_count ? shared.words[threadIdx.x] : 0;
  const BlockSum sum = block_exclusive_sum(__popc(word), lists.warp_totals);
  expand_word(word, sum.before, threadIdx.x * kBitsPerWord, lists.offsets);
  const ChunkStart start(block.first_unit(), params.n.divisor);
  const ChunkUnits units(params.n, lists.offsets, start, HashedRotations{start.tile, params.n.divisor, params.seed});
  block.sort(sum.total, units);

  const int lanes = lanes_per_row(ceil_div(width, Vector<Bits>::kSize));
  Bits* const values = static_cast<Bits*>(params.values);
  for (uint32_t s = threadIdx.x / lanes; s < sum.total; s += kThreads / lanes) {
    const uint32_t j = lists.order[s];
    const UnitPlace place = units.place(j);
    const int64_t slot = block.slot(s, place.server);
    if (slot < 0) continue;
    const int lane = lane_id() % lanes;
    if (lane == 0) params.positions[slot] = static_cast<int32_t>(place.tile);
    copy_row(values + slot * width, rows + lists.offsets[j] * width, width, lane, lanes);
  }
}

int64_t units_per_chunk(int64_t width, int64_t element_bytes) {
  if (width > 1) return rows_per_chunk(width, element_bytes, 1);
  return elements_per_chunk<StagedChunk>(element_bytes);
}

template <typename Bits>
size_t one_pass_shared_bytes(const DenseParams& params) {
  return params.problem.width > 1 ? shared_bytes<BucketsShared, RowsShared>(params)
                                  : shared_bytes<BucketsShared, ElementsShared<Bits>>(params);
}

bool is_chained(int64_t n, int64_t width) { return width > 1 || n <= kMostServersInChain; }

template <typename States, typename Kernel>
cudaError_t launch_with(Kernel kernel, const DenseParams& params, size_t shared, cudaStream_t stream) {
  ZEN_RETURN_IF_ERROR(zero_states<States>(params, stream));
  return launch(kernel, params.problem.batch * params.chunks, shared, stream, params);
}

template <typename Bits>
cudaError_t launch_one_pass(const DenseParams& params, size_t shared, cudaStream_t stream) {
  if (params.problem.width > 1) return launch_with<ChunkChain>(partition_rows<Bits>, params, shared, stream);
  return is_chained(params.problem.n, 1)
             ? launch_with<ChunkChain>(partition_elements<Bits, ChunkChain>, params, shared, stream)
             : launch_with<ChunkGroups>(partition_elements<Bits, ChunkGroups>, params, shared, stream);
}

}  // namespace

int64_t partition_scratch_bytes(int64_t units, int64_t width, int64_t element_bytes, int64_t n, int64_t capacity) {
  if (units == 0 || width == 0) return 0;
  const int64_t two_pass = two_pass_scratch_bytes(units, n);
  if (n > kMaxOnePassServers) return two_pass;
  // Enough for each, because only the device and the batch tell which one runs.
  const int64_t chunks = ceil_div(units, units_per_chunk(width, element_bytes));
  const auto one_pass = is_chained(n, width) ? state_bytes<ChunkChain> : state_bytes<ChunkGroups>;
  const bool runs = suits_runs({1, units, width, n, capacity});
  return std::max({two_pass, one_pass(1, chunks, n), runs ? runs_scratch_bytes(units, element_bytes, n, capacity) : 0});
}

cudaError_t partition(const PartitionProblem& problem, Element element, uint32_t seed, const void* d_x,
                      int32_t* d_positions, void* d_values, int32_t* d_counts, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  if (problem.units == 0 || problem.width == 0) {
    return cudaMemsetAsync(d_counts, 0, problem.batch * problem.n * sizeof(int32_t), stream);
  }
  const auto two_pass = [&] {
    return partition_two_pass(problem, element, seed, d_x, d_positions, d_values, d_counts, d_scratch, stream);
  };
  if (problem.n > kMaxOnePassServers) return two_pass();
  const int64_t bytes = element_bytes(element);
  const int64_t per_chunk = units_per_chunk(problem.width, bytes);
  DenseParams params = {partition_params(problem, per_chunk, seed, d_x, d_positions, d_values, d_counts, d_scratch),
                        SmallDivisor(static_cast<uint32_t>(problem.n)), 0};
  int most_shared = 0, multiprocessors = 0;
  ZEN_RETURN_IF_ERROR(most_shared_bytes(&most_shared));
  ZEN_RETURN_IF_ERROR(device_attribute(cudaDevAttrMultiProcessorCount, &multiprocessors));
  const bool by_runs = suits_runs(problem) && problem.batch * params.chunks >= kLeastChunksForRuns * multiprocessors;
  return visit_bits(element, [&](auto bits) {
    using Bits = decltype(bits);
    // One pass without a table is better than two.
    for (const uint32_t room : {RotationTable::room(problem.n, per_chunk), 0u}) {
      params.table_room = room;
      const size_t shared = one_pass_shared_bytes<Bits>(params);
      if (shared > static_cast<size_t>(most_shared)) continue;
      return by_runs ? partition_runs(params, element, multiprocessors, d_scratch, stream)
                     : launch_one_pass<Bits>(params, shared, stream);
    }
    return two_pass();
  });
}

}  // namespace zen::cuda
