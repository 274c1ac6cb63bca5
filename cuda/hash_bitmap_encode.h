// Hash bitmap encode on the GPU: one bit for each unit of a shard, and the non-zero units in order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

// Scratch for one batch item; a batch needs `batch` times as much in one piece.
int64_t encode_scratch_bytes(int64_t size, int64_t width, int64_t element_bytes);

// shard [batch, size, width] to words [batch, ceil(size / 32)], values [batch, capacity, width] and count [batch].
// The first `capacity` non-zero units are written; values beyond min(count, capacity) are not. No two of the buffers
// overlap. d_scratch is aligned to 16 bytes.
cudaError_t hash_bitmap_encode(const EncodeProblem& problem, Element element, const void* d_shard, uint32_t* d_words,
                               void* d_values, int32_t* d_count, void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
