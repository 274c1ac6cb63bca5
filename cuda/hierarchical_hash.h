// The paper's Algorithm 1 on the GPU: indices hashed in parallel into a bounded memory; what finds no room is counted.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"

namespace zen::cuda {

// indices [batch, indices] to memory [batch, n, r1 + r2], counts [batch, n] and overflow [batch]. Which of two indices
// wins a slot that both want depends on the run; the set of indices in a partition does not. Needs no scratch.
cudaError_t hierarchical_hash(const HierarchicalHashProblem& problem, uint32_t seed, const int32_t* d_indices,
                              uint32_t* d_memory, int32_t* d_counts, int32_t* d_overflow, cudaStream_t stream);

}  // namespace zen::cuda
