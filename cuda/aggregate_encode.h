// Aggregate and hash-bitmap encode in one kernel on the GPU: the shard between them is never written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

// Scratch for one batch item; a batch needs `batch` times as much in one piece.
int64_t aggregate_encode_scratch_bytes(int64_t size, int64_t width, int64_t element_bytes);

// Bitwise the same as hash_bitmap_encode of the shard from aggregate: positions [batch, n, capacity], values
// [batch, n, capacity, width] and counts [batch, n] to words [batch, ceil(size / 32)], units [batch, room, width] and
// count [batch]. The first `room` non-zero units are written; units beyond min(count, room) are not. No two of the
// buffers overlap. d_scratch is aligned to 16 bytes.
cudaError_t aggregate_encode(const AggregateEncodeProblem& problem, Element element, int64_t divisor,
                             const int32_t* d_positions, const void* d_values, const int32_t* d_counts,
                             uint32_t* d_words, void* d_units, int32_t* d_count, void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
