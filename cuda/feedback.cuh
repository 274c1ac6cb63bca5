// What the kernels of error feedback know about a gradient: its arrays, the state of its searches, and the log.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/common/keys.h"
#include "cuda/common/problem.h"
#include "cuda/common/sent.h"
#include "cuda/compaction.cuh"
#include "cuda/dtypes.cuh"
#include "cuda/launch.cuh"
#include "cuda/send_largest.h"
#include "cuda/threshold.cuh"

namespace zen::cuda {

// Blocks that a device can hold at once, at most: more would only wait, or divide counts further.
constexpr int64_t kResidentBlocks = 528;

// The part of a total that is sent; the rest stays.
__device__ inline float part_of(float total, Float32) { return total; }
__device__ inline double part_of(double total, Float64) { return total; }
__device__ inline float part_of(float total, Float16) { return sent_part_of_float16(total); }
__device__ inline float part_of(float total, Bfloat16) { return sent_part_of_bfloat16(total); }

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// The state of the searches in one gradient, from pass to pass.
template <typename Bits>
struct State {
  Search<Bits> ranks[2];  // in the sample: the keys below and above the threshold
  Search<Bits> threshold;
  Bits logged_from, sent_from;  // keys from the first on are logged, from the second on sent at once
  uint32_t uses_log;            // the log holds all that may reach the threshold; else every total is examined
};

// What may be sent, by ascending index, as it was before any of it was sent. [batch, room] each.
template <typename Sum>
struct Log {
  int64_t room;
  uint32_t* index;
  Sum* total;
  Sum* velocity;
};

template <typename Update>
struct Params {
  using Stored = typename Update::Stored;
  using Sum = typename Update::Sum;
  using Bits = BitsOf<Sum>;

  FeedbackProblem problem;
  int64_t sample_chunks;
  uint32_t blocks;  // for each item of a search
  Sum momentum;
  const Stored* update;
  const Sum* residual;
  const Sum* velocity;
  Stored* sent;  // unless a list is wanted
  SentList<Stored> list;
  Sum* new_residual;
  Sum* new_velocity;
  const LargestBounds* bounds;
  const Sum* scale;
  State<Bits>* states;
  Bits* sample;
  Log<Sum> log;
  CompactionParams logging, ties, listing;

  // The total to send for one element; `new_velocity` gets its velocity.
  __device__ Sum total(Stored update_value, Sum residual_value, Sum velocity_value, Sum scale_value,
                       Sum* new_velocity) const {
    const Sum gained = Update::widen(update_value);
    if (velocity == nullptr) return residual_value + gained;
    *new_velocity = multiply_add(momentum, velocity_value, gained * scale_value);
    return residual_value + *new_velocity;
  }

  // What stays of a total that is sent.
  __device__ Sum rest(Sum total) const {
    return key_of(bits_of(total)) < kInfinity<Sum> ? total - part_of(total, Update{}) : Sum{0};
  }

  // Sends element i of the batch.
  __device__ void send(int64_t i, Sum total) const {
    new_residual[i] = rest(total);
    if (velocity != nullptr) new_velocity[i] = 0;
    if (!list.is_wanted()) sent[i] = Update::round(part_of(total, Update{}));
  }

  // Takes back what was sent for entry `at` of the log.
  __device__ void take_back(int64_t i, int64_t at) const {
    new_residual[i] = log.total[at];
    if (velocity != nullptr) new_velocity[i] = log.velocity[at];
    if (!list.is_wanted()) sent[i] = Update::round(Sum{0});
  }

  __device__ uint32_t logged(int64_t item) const {
    const int64_t reaching = logging.count[item];
    return static_cast<uint32_t>(reaching < log.room ? reaching : log.room);
  }
};

}  // namespace zen::cuda
