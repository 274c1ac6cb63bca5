// Partition on the GPU: the non-zero units of a gradient, in one bucket for each server that owns them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

// Up to this many servers, one pass over the data suffices if the device has the shared memory for it; otherwise there
// are two passes, each reading with a stride.
constexpr int64_t kMaxOnePassServers = 1024;

// Scratch for one batch item; a batch needs `batch` times as much in one piece.
int64_t partition_scratch_bytes(int64_t units, int64_t width, int64_t element_bytes, int64_t n, int64_t capacity);

// x [batch, units, width] to positions [batch, n, capacity], values [batch, n, capacity, width] and counts [batch, n].
// Each server's bucket holds the first `capacity` of its non-zero units by ascending position; entries beyond
// min(count, capacity) are not written. No two of the buffers overlap. d_scratch is aligned to 16 bytes; its contents
// before and after do not matter.
cudaError_t partition(const PartitionProblem& problem, Element element, uint32_t seed, const void* d_x,
                      int32_t* d_positions, void* d_values, int32_t* d_counts, void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
