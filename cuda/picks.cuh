// A chunk of a gradient, or of a list, in vectors, and the ranks of the elements that a block picks from it.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

template <int kSize, typename T>
__device__ inline FloatPack<T, kSize> load_pack(const T* from, int64_t left, bool aligned) {
  if (aligned && left >= kSize) return *reinterpret_cast<const FloatPack<T, kSize>*>(from);
  FloatPack<T, kSize> pack = {};
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k < left) pack.at[k] = from[k];
  }
  return pack;
}

// A block's chunk of a gradient, or of a list: a warp owns consecutive elements and moves one pack per lane at a time.
template <typename Sum>
struct PackChunk {
  static constexpr int kSize = kVectorBytes / static_cast<int>(sizeof(Sum));
  static constexpr int kPacks = 4;
  static constexpr int kPerWarp = kPacks * kWarpSize * kSize;
  static constexpr int kPerBlock = kWarps * kPerWarp;
  static constexpr uint32_t kPackBits = (1u << kSize) - 1;

  // The element, in its chunk, that this thread's bit stands for: bit k of its pack j is number j * kSize + k.
  __device__ static int offset(int bit) {
    return warp_id() * kPerWarp + (bit / kSize * kWarpSize + lane_id()) * kSize + bit % kSize;
  }
  __device__ static int64_t element(int64_t chunk, int bit) { return chunk * kPerBlock + offset(bit); }
};

// The number of the lowest set bit.
__device__ inline int lowest_bit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

// The ranks of what the threads of a block pick from their chunk.
template <typename Chunk>
struct PickedRanks {
  uint32_t first[Chunk::kPacks];  // of this thread's picks in each pack
  uint32_t total;                 // of the block

  // `warp_totals` is used as in block_exclusive_sum.
  __device__ PickedRanks(uint32_t picked, uint32_t* warp_totals) {
    static_assert(Chunk::kPacks == 4 && Chunk::kSize * kWarpSize < 256, "a byte for a warp's count of each pack");
    uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) mine |= __popc(picked >> j * Chunk::kSize & Chunk::kPackBits) << 8 * j;
    const uint32_t through = warp_inclusive_sum(mine), before = through - mine;
    const uint32_t warp = __shfl_sync(kFullWarp, through, kWarpSize - 1);
    uint32_t of_warp = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) of_warp += warp >> 8 * j & 0xff;
    const BlockSum sum = block_exclusive_sum(lane_id() == kWarpSize - 1 ? of_warp : 0, warp_totals);
    total = sum.total;
    uint32_t earlier_packs = sum.before;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first[j] = earlier_packs + (before >> 8 * j & 0xff);
      earlier_packs += warp >> 8 * j & 0xff;
    }
  }

  // Calls visit(rank in the block, bit) for each of this thread's picks.
  template <typename Visit>
  __device__ void for_each(uint32_t picked, Visit visit) const {
#pragma unroll
    for (int j = 0; j < Chunk::kPacks; ++j) {
      uint32_t rank = first[j];
      for (uint32_t left = picked & Chunk::kPackBits << j * Chunk::kSize; left != 0; left &= left - 1) {
        visit(rank++, lowest_bit(left));
      }
    }
  }
};

}  // namespace zen::cuda
