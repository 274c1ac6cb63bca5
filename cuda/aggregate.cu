#include "cuda/aggregate.h"
#include "cuda/launch.cuh"
#include "cuda/range_sums.cuh"

namespace zen::cuda {
namespace {

template <typename Dtype>
struct AggregateParams {
  SumParams<Dtype> sums;
  void* shard;
};

template <typename Dtype, int kPackSize>
__global__ void __launch_bounds__(kThreads, kSumBlocks<Dtype, kPackSize>)
    aggregate_range(const __grid_constant__ AggregateParams<Dtype> params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  RangeSums<Dtype, kPackSize> sums(arena);
  sums.clear();

  const AggregateProblem& problem = params.sums.problem;
  const uint32_t row_range = blockIdx.x / params.sums.column_ranges;
  const int64_t batch = row_range / params.sums.row_ranges;
  sums.sum(params.sums, batch, row_range - batch * params.sums.row_ranges,
           blockIdx.x - row_range * params.sums.column_ranges);

  constexpr uint32_t kVector = kVectorPack<Dtype>;
  auto* const to = static_cast<typename Dtype::Stored*>(params.shard) +
                   (batch * problem.size + sums.first_row()) * problem.width + sums.first_column();
  const uint32_t in_vectors = is_aligned(to) ? sums.size() / kVector * kVector : 0;
  for (uint32_t i = threadIdx.x * kVector; i < in_vectors; i += kThreads * kVector) {
    store_pack(to + i, sums.template results<kVector>(i, params.sums.reciprocal));
  }
  for (uint32_t i = in_vectors + threadIdx.x; i < sums.size(); i += kThreads) {
    store_pack(to + i, sums.template results<1>(i, params.sums.reciprocal));
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
    const AggregateParams<Dtype> params = {
        cut_into_ranges<Dtype, kPackSize>(problem, divisor, d_positions, d_values, d_counts), d_shard};
    const int64_t blocks = problem.batch * params.sums.row_ranges * params.sums.column_ranges;
    const size_t shared = shared_bytes<RangeSums<Dtype, kPackSize>>();
    return launch(aggregate_range<Dtype, kPackSize>, blocks, shared, stream, params);
  });
}

}  // namespace zen::cuda
