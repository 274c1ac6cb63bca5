// Aggregate on the GPU: a server's sum of what its workers pushed, in worker order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

// positions [batch, n, capacity], values [batch, n, capacity, width] and counts [batch, n] to shard
// [batch, size, width]: the sum over workers 0, 1, ... of the value at each position, from +0, times 1 / divisor.
// Float64 is summed in float64, the others in float32, and rounded once. Positions ascend strictly within a worker's
// first min(count, capacity) entries; positions outside the shard are ignored. Deterministic.
cudaError_t aggregate(const AggregateProblem& problem, Element element, int64_t divisor, const int32_t* d_positions,
                      const void* d_values, const int32_t* d_counts, void* d_shard, cudaStream_t stream);

}  // namespace zen::cuda
