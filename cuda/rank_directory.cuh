// A directory over bitmaps: how many bits are set before each group of words, so that the rank of any bit takes a
// look-up and at most kGroupWords population counts.
#pragma once

#include <cstdint>

#include "cuda/common/bits.h"
#include "cuda/look_back.cuh"

namespace zen::cuda {

constexpr int kGroupWords = 8;
constexpr int kGroupsPerThread = 4;
constexpr int64_t kGroupsPerChunk = kThreads * kGroupsPerThread;

ZEN_HOST_DEVICE int64_t directory_groups(int64_t words) { return ceil_div(words, kGroupWords); }

struct DirectoryParams {
  const uint32_t* bitmaps;  // [count, words]
  int64_t words;
  int64_t groups;
  int64_t chunks;  // of one bitmap
  uint32_t* ticket;
  uint32_t* states;     // of ChunkGroups, for each bitmap
  uint32_t* directory;  // [count, groups]

  __device__ const uint32_t* word(int64_t bitmap, uint32_t index) const { return bitmaps + bitmap * words + index; }
};

// The set bits of a bitmap before one of its words. The constructor starts all loads, and only sum() waits for them.
class BitsBeforeWord {
 public:
  BitsBeforeWord() = default;
  __device__ BitsBeforeWord(const DirectoryParams& params, int64_t bitmap, uint32_t index) {
    before_group_ = params.directory[bitmap * params.groups + index / kGroupWords];
    const uint32_t* const word = params.word(bitmap, index);
    const int place = static_cast<int>(index % kGroupWords);
#pragma unroll
    for (int i = 1; i < kGroupWords; ++i) preceding_[i - 1] = i <= place ? word[-i] : 0;
  }

  __device__ uint32_t sum() const {
    uint32_t sum = before_group_;
#pragma unroll
    for (const uint32_t word : preceding_) sum += __popc(word);
    return sum;
  }

 private:
  uint32_t before_group_ = 0;
  uint32_t preceding_[kGroupWords - 1] = {};  // in the word's group
};

// Scratch of the directory of `count` bitmaps: ticket, states, directory.
inline int64_t directory_state_bytes(int64_t count, int64_t words) {
  return state_bytes<ChunkGroups>(count, ceil_div(directory_groups(words), kGroupsPerChunk), 1);
}
inline int64_t directory_bytes(int64_t count, int64_t words) {
  return directory_state_bytes(count, words) + count * directory_groups(words) * int64_t{sizeof(uint32_t)};
}

// Enqueues the construction of the directory in `d_scratch` and describes it for the kernels that read it.
cudaError_t make_directory(const uint32_t* d_bitmaps, int64_t count, int64_t words, void* d_scratch,
                           cudaStream_t stream, DirectoryParams* directory);

}  // namespace zen::cuda
