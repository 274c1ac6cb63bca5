// Error feedback: sends some elements of what has accumulated in a residual, and keeps the rest there. It takes one
// pass over memory if a sample predicts the threshold.
#pragma once

#include <cstdint>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "cuda/common/sent.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// The arrays of a call, [batch, size]. Results may alias the operands they replace; velocities are null without
// momentum. What is sent is written to `sent`, or to the list if that is wanted.
template <typename Update>
struct FeedbackArrays {
  using T = Accumulator<Update>;
  const Update* update;
  const T* residual;
  const T* velocity;
  Update* sent;
  T* new_residual;
  T* new_velocity;
  SentList<Update> list = {};
};

// Sends the elements of largest magnitude. The sample is `chunks` chunks of kSampleChunk elements; 0 for none.
template <typename Update>
void send_largest(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, const LargestBounds* bounds,
                  const Accumulator<Update>* scale, double momentum, int64_t chunks, const Context& context);

// Sends the k elements that draw the largest random keys in step[item].
template <typename Update>
void send_drawn(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, const uint32_t* step, int64_t k,
                const Context& context);

// Sends the elements that reach a magnitude, given by its key.
template <typename Update>
void send_reaching(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, uint64_t key,
                   const Context& context);

}  // namespace zen
