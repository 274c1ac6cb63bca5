// What the kernels of error feedback know of a gradient: its arrays, the state of its searches, vectors of its elements.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/accumulate.cuh"
#include "cuda/common/problem.h"
#include "cuda/common/sent.h"
#include "cuda/launch.cuh"
#include "cuda/threshold.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// Blocks that a device holds at once: more would only divide the counts further.
constexpr int64_t kResidentBlocks = 528;

template <typename Sum>
struct BitsOf;
template <>
struct BitsOf<float> {
  using Bits = uint32_t;
  static constexpr Bits kInfinity = kInfinityBits;
};
template <>
struct BitsOf<double> {
  using Bits = uint64_t;
  static constexpr Bits kInfinity = 0x7ff0000000000000u;
};

template <typename Sum>
__device__ inline typename BitsOf<Sum>::Bits bits_of(Sum x) {
  typename BitsOf<Sum>::Bits bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// What of a total is sent; the rest of it stays.
__device__ inline float part_of(float total, Float32) { return total; }
__device__ inline double part_of(double total, Float64) { return total; }
__device__ inline float part_of(float total, Float16) { return sent_part_of_float16(total); }
__device__ inline float part_of(float total, Bfloat16) { return sent_part_of_bfloat16(total); }

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// What the passes over one gradient know of it.
template <typename Bits>
struct State {
  Search<Bits> ranks[2];  // in the sample: the keys below and above the threshold
  Search<Bits> threshold;
  Search<uint32_t> ties;    // the least of the reversed indices that are sent of those at the threshold
  Bits low, high;            // the candidates' keys lie in [low, high)
  uint32_t left_out;         // candidates that found no room
  uint32_t candidates_hold;  // the threshold is among those listed
  int32_t above;             // keys that reach `high`
};

template <typename Update>
struct Params {
  using Stored = typename Update::Stored;
  using Sum = typename Update::Sum;
  using Bits = typename BitsOf<Sum>::Bits;

  FeedbackProblem problem;
  int64_t chunks;
  int64_t room;  // for candidates, divided among the blocks
  uint32_t blocks;
  Sum momentum;
  const Stored* update;
  const Sum* residual;
  const Sum* velocity;
  Stored* sent;
  Sum* new_residual;
  Sum* new_velocity;
  const LargestBounds* bounds;
  const Sum* scale;
  State<Bits>* states;
  Bits* sample;
  Bits* listed;
  uint32_t* listed_counts;  // [batch, kResidentBlocks]

  __device__ int64_t item() const { return blockIdx.x / blocks; }
  __device__ int64_t first_thread() const {
    return static_cast<int64_t>(blockIdx.x % blocks) * kThreads + threadIdx.x;
  }
  __device__ int64_t threads() const { return static_cast<int64_t>(blocks) * kThreads; }

  // Where this block lists candidates of its own.
  __device__ int64_t block_room() const { return room / blocks; }
  __device__ Bits* block_list() const { return listed + item() * room + blockIdx.x % blocks * block_room(); }
  __device__ uint32_t* block_count() const { return listed_counts + item() * kResidentBlocks + blockIdx.x % blocks; }

  // One element: what is to be sent in total, and where its velocity moves to.
  __device__ Sum total(Stored update_value, Sum residual_value, Sum velocity_value, Sum scale_value, Sum* moved) const {
    const Sum gained = Update::widen(update_value);
    if (velocity == nullptr) return residual_value + gained;
    *moved = multiply_add(momentum, velocity_value, gained * scale_value);
    return residual_value + *moved;
  }
};

// As many elements as 16 bytes of sums hold. Vectors of a gradient that starts elsewhere are moved one by one.
template <typename T, int kSize>
struct alignas(kSize * sizeof(T)) Pack {
  T at[kSize];
};

template <int kSize, typename T>
__device__ inline Pack<T, kSize> load_pack(const T* from, int64_t left, bool aligned) {
  if (aligned && left >= kSize) return *reinterpret_cast<const Pack<T, kSize>*>(from);
  Pack<T, kSize> pack = {};
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k < left) pack.at[k] = from[k];
  }
  return pack;
}

template <int kSize, typename T>
__device__ inline void store_pack(T* to, const Pack<T, kSize>& pack, int64_t left, bool aligned) {
  if (aligned && left >= kSize) {
    store_whole(to, pack);
    return;
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k < left) to[k] = pack.at[k];
  }
}

}  // namespace zen::cuda
