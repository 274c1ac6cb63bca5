// A block's chunk of consecutive elements: copied to shared memory in bulk, with a bitmap of its non-zeros.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// A warp owns kPerWarp consecutive elements, kWordsPerWarp words of the bitmap. Lane j ends up with word j and the
// number of non-zeros in the block before that word.
template <typename Bits>
class StagedChunk {
 public:
  static constexpr int kWordsPerWarp = sizeof(Bits) == 8 ? 16 : 32;  // so that three blocks share a multiprocessor
  static constexpr int kPerWarp = kWordsPerWarp * static_cast<int>(kBitsPerWord);
  static constexpr int kPerBlock = kWarps * kPerWarp;
  static_assert(kWordsPerWarp <= kWarpSize, "a lane holds one word of the bitmap");
  static_assert(kPerBlock <= 1 << 16, "an offset in a chunk has 16 bits");

  // `staged` has room for kPerBlock elements. `arrived` and `warp_totals` are used as in BulkLoads and
  // block_exclusive_sum.
  __device__ StagedChunk(Bits* staged, uint64_t* arrived, uint32_t* warp_totals)
      : loads_(arrived), staged_(staged), warp_totals_(warp_totals) {}

  // Begins to copy elements first .. first + kPerBlock - 1 of `source`; those at or beyond `limit` count as zero.
  __device__ void load(const Bits* source, int64_t first, int64_t limit) {
    whole_ = is_aligned(source + first) && first + kPerBlock <= limit;
    if (whole_) {
      loads_.expect(kPerBlock * sizeof(Bits));
      loads_.load(staged_, source + first, kPerBlock * sizeof(Bits));
    } else {
      for (int i = threadIdx.x; i < kPerBlock; i += kThreads) {
        staged_[i] = first + i < limit ? source[first + i] : Bits{0};
      }
    }
  }

  // Waits for the elements and examines them. Has a barrier.
  __device__ void find_nonzeros() {
    if (whole_) {
      loads_.wait();
    } else {
      __syncthreads();
    }
    const Bits* const mine = staged_ + warp_id() * kPerWarp + lane_id();
    word_ = 0;
#pragma unroll
    for (int w = 0; w < kWordsPerWarp; ++w) {
      const uint32_t word = __ballot_sync(kFullWarp, is_nonzero(mine[w * kBitsPerWord]));
      if (lane_id() == w) word_ = word;
    }
    const BlockSum sum = block_exclusive_sum(__popc(word_), warp_totals_);
    before_word_ = sum.before;
    nonzeros_ = sum.total;
  }

  // As of BulkLoads, before the block loads another chunk.
  __device__ void retire() const { loads_.retire(); }

  // Non-zeros of the whole block.
  __device__ uint32_t nonzeros() const { return nonzeros_; }
  // Non-zeros before this warp's, and before the next warp's.
  __device__ uint32_t warp_begin() const { return __shfl_sync(kFullWarp, before_word_, 0); }
  __device__ uint32_t warp_end() const { return __shfl_sync(kFullWarp, before_word_ + __popc(word_), kWarpSize - 1); }

  // Calls visit(rank in the block, offset in the chunk) for each non-zero, in the warp that owns it. A lane goes
  // through the set bits of its word; where a word is nearly full, that takes longer than going through all elements,
  // and full neighbours would write to the same banks.
  template <typename Visit>
  __device__ void for_each_nonzero(Visit visit) const {
    constexpr int kMany = 24;
    const int first = warp_id() * kPerWarp;
    if (!__any_sync(kFullWarp, __popc(word_) > kMany)) {
      uint32_t rank = before_word_;
      for (uint32_t word = word_; word != 0; word &= word - 1) {
        visit(rank++, first + lane_id() * static_cast<int>(kBitsPerWord) + __ffs(static_cast<int>(word)) - 1);
      }
      return;
    }
    for (int w = 0; w < kWordsPerWarp; ++w) {
      const uint32_t word = __shfl_sync(kFullWarp, word_, w), bit = 1u << lane_id();
      const uint32_t rank = __shfl_sync(kFullWarp, before_word_, w) + __popc(word & (bit - 1u));
      if (word & bit) visit(rank, first + w * static_cast<int>(kBitsPerWord) + lane_id());
    }
  }

 private:
  const BulkLoads loads_;
  Bits* const staged_;
  uint32_t* const warp_totals_;
  bool whole_;
  uint32_t word_;  // word lane_id() of the warp's bitmap; 0 in lanes from kWordsPerWarp on
  uint32_t before_word_;
  uint32_t nonzeros_;
};

}  // namespace zen::cuda
