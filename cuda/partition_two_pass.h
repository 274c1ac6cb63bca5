// Partition for more servers than a block can keep counters for: one pass counts, a second one writes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

int64_t two_pass_scratch_bytes(int64_t units, int64_t n);

// Like `partition`, for any number of servers. A thread walks the tiles of its server, so that a warp reads one tile's
// units side by side; each thread alone tests and copies the rows it meets.
cudaError_t partition_two_pass(const PartitionProblem& problem, Element element, uint32_t seed, const void* d_x,
                               int32_t* d_positions, void* d_values, int32_t* d_counts, void* d_scratch,
                               cudaStream_t stream);

}  // namespace zen::cuda
