// Partition on the GPU of a gradient given as a list of its non-zero elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

int64_t partition_coo_scratch_bytes(int64_t entries, int64_t n);

// indices [batch, units], ascending, values [batch, units] and their count [batch] (at most `units` are read) to
// buckets as `partition` writes them. The problem's units are the entries, of one element each.
cudaError_t partition_coo(const PartitionProblem& problem, Element element, uint32_t seed, const int32_t* d_indices,
                          const void* d_values, const int32_t* d_count, int32_t* d_positions, void* d_bucket_values,
                          int32_t* d_counts, void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
