// A block's chunk of consecutive elements: loaded into registers, with a bitmap of its non-zeros.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// A warp owns kPerWarp consecutive elements and reads 512 bytes of them per step. Lane j ends up with word j of the
// warp's bitmap and the number of non-zeros in the block before that word, from which every lane finds the rank of each
// of its own elements.
template <typename Bits>
class ElementChunk {
 public:
  static constexpr int kVector = Vector<Bits>::kSize;
  static constexpr int kSteps = sizeof(Bits) == 2 ? 4 : 8;
  static constexpr int kPerStep = kWarpSize * kVector;
  static constexpr int kPerWarp = kSteps * kPerStep;
  static constexpr int kPerBlock = kWarps * kPerWarp;
  static constexpr int kWordsPerWarp = kPerWarp / kBitsPerWord;
  static_assert(kWordsPerWarp <= kWarpSize, "a lane holds one word of the bitmap");

  // Loads elements first .. first + kPerBlock - 1 of `source`; those at or beyond `limit` count as zero.
  // `warp_totals` is used as in block_exclusive_sum.
  __device__ ElementChunk(const Bits* source, int64_t first, int64_t limit, uint32_t* warp_totals) {
    const int64_t mine = first + warp_id() * kPerWarp + lane_id() * kVector;
    const bool aligned = is_aligned(source + first);
    // Tested once for the block: all chunks but the last of an aligned tensor need nothing else.
    if (aligned && first + kPerBlock <= limit) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) data_[i] = load_whole_vector(source + mine + i * kPerStep);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) data_[i] = load_vector(source, mine + i * kPerStep, limit, aligned);
    }
    word_ = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t bits = nonzero_mask(data_[i]) << first_bit();
#pragma unroll
      for (int delta = 1; delta < kLanesPerWord; delta *= 2) bits |= __shfl_xor_sync(kFullWarp, bits, delta);
      const uint32_t gathered = __shfl_sync(kFullWarp, bits, lane_id() % kVector * kLanesPerWord);
      if (lane_id() / kVector == i) word_ = gathered;
    }
    const BlockSum sum = block_exclusive_sum(__popc(word_), warp_totals);
    before_word_ = sum.before;
    nonzeros_ = sum.total;
  }

  // Word lane_id() of the warp's bitmap; 0 in lanes from kWordsPerWarp on.
  __device__ uint32_t word() const { return word_; }
  // Non-zeros of the whole block.
  __device__ uint32_t nonzeros() const { return nonzeros_; }

  // Calls emit(rank in the block, element) for each of this thread's non-zeros.
  template <typename Emit>
  __device__ void for_each_nonzero(Emit emit) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int holder = i * kVector + lane_id() / kLanesPerWord;
      const uint32_t word = __shfl_sync(kFullWarp, word_, holder);
      uint32_t rank = __shfl_sync(kFullWarp, before_word_, holder) + __popc(word & ((1u << first_bit()) - 1u));
      const uint32_t mine = word >> first_bit();
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if ((mine >> k) & 1u) emit(rank++, data_[i].at[k]);
      }
    }
  }

 private:
  static constexpr int kLanesPerWord = static_cast<int>(kBitsPerWord) / kVector;

  // The bit, in its word, of this lane's first element.
  __device__ static int first_bit() { return lane_id() * kVector % static_cast<int>(kBitsPerWord); }

  Vector<Bits> data_[kSteps];
  uint32_t word_;
  uint32_t before_word_;
  uint32_t nonzeros_;
};

}  // namespace zen::cuda
