// Partition of single elements of which few are non-zero, where no block waits for another: each sorts its chunk into
// runs, one for every server, in scratch memory, and once the lengths of all runs are known each is moved to its place.
// The non-zeros are written and read once more than in one pass.
#pragma once

#include "cuda/element.h"
#include "cuda/partition_elements.cuh"

namespace zen::cuda {

// Whether this can be done and, on a tensor of many chunks with about as many non-zeros as the buckets have room for,
// is faster than one pass. A batch suits only if one item does.
bool suits_runs(const PartitionProblem& problem);

// Scratch for one batch item.
int64_t runs_scratch_bytes(int64_t units, int64_t element_bytes, int64_t n, int64_t capacity);

// As partition(), for a problem that suits, on a device with so many multiprocessors.
cudaError_t partition_runs(const DenseParams& params, Element element, int multiprocessors, void* d_scratch,
                           cudaStream_t stream);

}  // namespace zen::cuda
