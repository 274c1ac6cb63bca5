#include "cuda/aggregate.h"
#include "cuda/launch.cuh"
#include "cuda/range_sums.cuh"

namespace zen::cuda {
namespace {

struct AggregateParams {
  SumParams sums;
  void* shard;
};

template <typename Dtype, int kPackSize>
__global__ void __launch_bounds__(kThreads, 2) aggregate_range(const __grid_constant__ AggregateParams params) {
  using Sums = RangeSums<Dtype, kPackSize>;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  Sums sums(arena);

  const AggregateProblem& problem = params.sums.problem;
  const int64_t row_range = blockIdx.x / params.sums.column_ranges;
  const int64_t batch = row_range / params.sums.row_ranges;
  sums.sum(params.sums, batch, row_range - batch * params.sums.row_ranges,
           blockIdx.x - row_range * params.sums.column_ranges);

  const auto reciprocal = reciprocal_of<typename Dtype::Sum>(params.sums.divisor);
  auto* const shard = static_cast<typename Dtype::Stored*>(params.shard);
  const SmallDivisor& packs = params.sums.packs;
  for (uint32_t i = threadIdx.x; i < params.sums.rows * packs.divisor; i += kThreads) {
    const uint32_t quotient = packs.quotient(i);
    const int64_t row = sums.first_row() + quotient;
    const int64_t column = sums.first_column() + packs.remainder(i, quotient) * kPackSize;
    if (row >= problem.size) break;
    if (column >= problem.width) continue;
    store_pack(shard + (batch * problem.size + row) * problem.width + column, sums.result(i, reciprocal));
  }
}

}  // namespace

cudaError_t aggregate(const AggregateProblem& problem, Element element, int64_t divisor, const int32_t* d_positions,
                      const void* d_values, const int32_t* d_counts, void* d_shard, cudaStream_t stream) {
  if (problem.batch == 0 || problem.size == 0 || problem.width == 0) return cudaSuccess;
  const bool vectors = fits_vectors(problem.width, element_bytes(element), d_values, d_shard);
  return visit_dtype_and_pack(element, vectors, [&](auto dtype, auto pack) {
    using Dtype = decltype(dtype);
    constexpr int kPackSize = decltype(pack)::value;
    SharedArena arena = SharedArena::for_measuring();
    RangeSums<Dtype, kPackSize> sums(arena);
    const AggregateParams params = {
        cut_into_ranges<Dtype, kPackSize>(problem, divisor, d_positions, d_values, d_counts), d_shard};
    const int64_t blocks = problem.batch * params.sums.row_ranges * params.sums.column_ranges;
    return launch(aggregate_range<Dtype, kPackSize>, blocks, arena.used(), stream, params);
  });
}

}  // namespace zen::cuda
