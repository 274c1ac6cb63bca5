#include <algorithm>

#include "cuda/accumulate.cuh"
#include "cuda/aggregate.h"
#include "cuda/common/bits.h"
#include "cuda/common/divide.h"
#include "cuda/launch.cuh"

namespace zen::cuda {
namespace {

// Sums that a block keeps in shared memory: a range of positions, times a range of columns where units are rows.
constexpr int32_t kSumsPerBlock = 8192;

// Workers whose range bounds are looked up at once, by two threads each.
constexpr int32_t kWorkersAtOnce = kThreads / 2;

struct AggregateParams {
  AggregateProblem problem;
  int64_t divisor;
  int32_t rows;          // positions of a block
  SmallDivisor columns;  // columns of a block
  int64_t row_blocks;    // of one batch item
  int64_t column_blocks;
  const int32_t* positions;
  const void* values;
  const int32_t* counts;
  void* shard;
};

// The part of the shard that this block makes.
struct AggregateBlock {
  int64_t batch;
  int64_t first_row;
  int32_t rows;
  int64_t first_column;
  int32_t columns;

  __device__ explicit AggregateBlock(const AggregateParams& params) {
    const int64_t item = blockIdx.x / params.column_blocks;
    batch = item / params.row_blocks;
    first_row = (item - batch * params.row_blocks) * params.rows;
    first_column = (blockIdx.x - item * params.column_blocks) * params.columns.divisor;
    const int64_t rows_left = params.problem.size - first_row;
    const int64_t columns_left = params.problem.width - first_column;
    rows = rows_left < params.rows ? static_cast<int32_t>(rows_left) : params.rows;
    const int32_t most = static_cast<int32_t>(params.columns.divisor);
    columns = columns_left < most ? static_cast<int32_t>(columns_left) : most;
  }
};

// The first of `count` ascending positions that is not below `bound`.
__device__ int64_t lower_bound(const int32_t* positions, int64_t count, int64_t bound) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (positions[low + half] < bound) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// One addend on its way: loaded for the next worker while the current one is added.
template <typename Sum>
struct Addend {
  int32_t slot;  // -1 for none
  Sum value;
};

// Addend `i` of a worker whose entries begin..end-1 lie in the block's range. A position that breaks the order may lie
// outside: it is ignored.
template <typename Dtype>
__device__ Addend<typename Dtype::Sum> load_addend(const AggregateParams& params, const AggregateBlock& block,
                                                   int64_t worker, int64_t begin, int32_t entries, uint32_t i) {
  const uint32_t entry = params.columns.quotient(i);
  if (static_cast<int32_t>(entry) >= entries) return {-1, 0};
  const uint32_t column = params.columns.remainder(i, entry);
  const int64_t at = (block.batch * params.problem.n + worker) * params.problem.capacity + begin + entry;
  const int64_t row = params.positions[at] - block.first_row;
  if (row < 0 || row >= block.rows || static_cast<int32_t>(column) >= block.columns) return {-1, 0};
  const auto* const values = static_cast<const typename Dtype::Stored*>(params.values);
  return {static_cast<int32_t>(row * params.columns.divisor + column),
          Dtype::widen(values[at * params.problem.width + block.first_column + column])};
}

// A worker's positions are distinct, so its addends go to different sums and need no atomics; a barrier between
// workers keeps their order.
template <typename Dtype>
__global__ void __launch_bounds__(kThreads, 2) aggregate_range(const __grid_constant__ AggregateParams params) {
  using Sum = typename Dtype::Sum;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  Sum* const sums = arena.take<Sum>(kSumsPerBlock);
  int64_t* const bounds = arena.take<int64_t>(kThreads);

  const AggregateProblem& problem = params.problem;
  const AggregateBlock block(params);
  for (int32_t i = threadIdx.x; i < kSumsPerBlock; i += kThreads) sums[i] = 0;

  for (int64_t base = 0; base < problem.n; base += kWorkersAtOnce) {
    const int32_t workers = problem.n - base < kWorkersAtOnce ? static_cast<int32_t>(problem.n - base) : kWorkersAtOnce;
    if (static_cast<int32_t>(threadIdx.x) < 2 * workers) {
      const int64_t bucket = block.batch * problem.n + base + threadIdx.x / 2;
      const int64_t count = params.counts[bucket];
      const int64_t held = count < 0 ? 0 : count < problem.capacity ? count : problem.capacity;
      const int64_t bound = threadIdx.x % 2 ? block.first_row + block.rows : block.first_row;
      bounds[threadIdx.x] = lower_bound(params.positions + bucket * problem.capacity, held, bound);
    }
    __syncthreads();

    const auto entries_of = [&](int32_t w) {
      const int64_t entries = bounds[2 * w + 1] - bounds[2 * w];
      return entries < block.rows ? static_cast<int32_t>(entries) : block.rows;
    };
    const auto load = [&](int32_t w, uint32_t i) {
      return load_addend<Dtype>(params, block, base + w, bounds[2 * w], entries_of(w), i);
    };
    Addend<Sum> next = load(0, threadIdx.x);
    for (int32_t w = 0; w < workers; ++w) {
      const Addend<Sum> addend = next;
      if (w + 1 < workers) next = load(w + 1, threadIdx.x);
      if (addend.slot >= 0) sums[addend.slot] += addend.value;
      const int32_t addends = entries_of(w) * static_cast<int32_t>(params.columns.divisor);
      for (int32_t i = threadIdx.x + kThreads; i < addends; i += kThreads) {
        const Addend<Sum> later = load(w, i);
        if (later.slot >= 0) sums[later.slot] += later.value;
      }
      __syncthreads();
    }
  }

  const Sum reciprocal = Sum{1} / static_cast<Sum>(params.divisor);  // as XLA compiles the division of pmean
  auto* const shard = static_cast<typename Dtype::Stored*>(params.shard);
  const int32_t slots = block.rows * static_cast<int32_t>(params.columns.divisor);
  for (int32_t i = threadIdx.x; i < slots; i += kThreads) {
    const uint32_t row = params.columns.quotient(i);
    const uint32_t column = params.columns.remainder(i, row);
    if (static_cast<int32_t>(column) >= block.columns) continue;
    shard[(block.batch * problem.size + block.first_row + row) * problem.width + block.first_column + column] =
        Dtype::round(sums[i] * reciprocal);
  }
}

template <typename Dtype>
cudaError_t launch_aggregate(const AggregateParams& params, cudaStream_t stream) {
  SharedArena arena = SharedArena::for_measuring();
  arena.take<typename Dtype::Sum>(kSumsPerBlock);
  arena.take<int64_t>(kThreads);
  const int64_t blocks = params.problem.batch * params.row_blocks * params.column_blocks;
  return launch(aggregate_range<Dtype>, blocks, arena.used(), stream, params);
}

}  // namespace

cudaError_t aggregate(const AggregateProblem& problem, Element element, int64_t divisor, const int32_t* d_positions,
                      const void* d_values, const int32_t* d_counts, void* d_shard, cudaStream_t stream) {
  if (problem.batch == 0 || problem.size == 0 || problem.width == 0) return cudaSuccess;
  const int64_t columns = std::min<int64_t>(problem.width, kSumsPerBlock);
  AggregateParams params;
  params.problem = problem;
  params.divisor = divisor;
  params.rows = static_cast<int32_t>(kSumsPerBlock / columns);
  params.columns = SmallDivisor(static_cast<uint32_t>(columns));
  params.row_blocks = ceil_div(problem.size, params.rows);
  params.column_blocks = ceil_div(problem.width, columns);
  params.positions = d_positions;
  params.values = d_values;
  params.counts = d_counts;
  params.shard = d_shard;
  switch (element) {
    case Element::kFloat32:
      return launch_aggregate<Float32>(params, stream);
    case Element::kFloat64:
      return launch_aggregate<Float64>(params, stream);
    case Element::kFloat16:
      return launch_aggregate<Float16>(params, stream);
    case Element::kBfloat16:
      return launch_aggregate<Bfloat16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace zen::cuda
