// Error feedback on a GPU: sends the largest elements of what has accumulated in a residual, as an array or as a list,
// and keeps the rest there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/problem.h"
#include "cuda/common/sent.h"
#include "cuda/element.h"

namespace zen::cuda {

// Device pointers, [batch, size] each. Results may alias the operands they replace; velocities are null without
// momentum. What is sent is written to `sent`, or to the list if that is wanted. `element` is the type of update and
// sent; the others are float64 for float64, else float32.
struct SendLargestArrays {
  const void* update;
  const void* residual;
  const void* velocity;
  void* sent;
  SentList<void> list;
  void* new_residual;
  void* new_velocity;
};

// Scratch for one batch item, with a velocity if `has_velocity`.
int64_t send_largest_scratch_bytes(int64_t size, int64_t element_bytes, int64_t sample_chunks, bool has_velocity);

// `d_bounds` is [batch, 4] and `d_scale` [batch]; without a sample, `sample_chunks` is 0. See zen_jax/selection.py.
cudaError_t send_largest(const FeedbackProblem& problem, Element element, const SendLargestArrays& d_arrays,
                         const LargestBounds* d_bounds, const void* d_scale, double momentum, int64_t sample_chunks,
                         void* d_scratch, cudaStream_t stream);

}  // namespace zen::cuda
