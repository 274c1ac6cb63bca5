// Hash bitmap decode on the GPU: the tensor whose units n servers hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/element.h"

namespace zen::cuda {

// Scratch for one batch item; a batch needs `batch` times as much in one piece.
int64_t decode_scratch_bytes(int64_t units, int64_t width, int64_t element_bytes, int64_t n);

// words [batch, n, words] and values [batch, n, capacity, width] to out [batch, units, width], every element of which
// is written once. Units with a clear bit, or whose value lies beyond the capacity, become +0. No two of the buffers
// overlap. d_scratch is aligned to 16 bytes.
cudaError_t hash_bitmap_decode(const DecodeProblem& problem, Element element, uint32_t seed, const uint32_t* d_words,
                               const void* d_values, void* d_out, void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
