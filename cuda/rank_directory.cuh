// A directory over bitmaps: how many bits are set before each group of words, so that the rank of any bit takes a
// look-up and few population counts.
#pragma once

#include <cstdint>

#include "cuda/common/bits.h"
#include "cuda/look_back.cuh"

namespace zen::cuda {

// Words of a group, at most.
constexpr uint32_t kLogGroupWords = 3;
constexpr int kGroupWords = 1 << kLogGroupWords;

// Words that a thread counts. Groups of one word leave registers for fewer.
ZEN_HOST_DEVICE constexpr int words_per_thread(int group_words) { return group_words == 1 ? 16 : 32; }

inline int64_t directory_chunks(int64_t words, uint32_t log_group_words) {
  return ceil_div(words, kThreads * words_per_thread(1 << log_group_words));
}

ZEN_HOST_DEVICE int64_t directory_groups(int64_t words, uint32_t log_group_words) {
  return ceil_div(words, int64_t{1} << log_group_words);
}

struct DirectoryParams {
  const uint32_t* bitmaps;  // [count, words]
  int64_t words;
  int64_t groups;
  int64_t chunks;  // of one bitmap
  uint32_t* ticket;
  uint32_t* states;     // of ChunkGroups, for each bitmap
  uint32_t* directory;  // [count, groups]
  uint32_t log_group_words;

  __device__ const uint32_t* word(int64_t bitmap, uint32_t index) const { return bitmaps + bitmap * words + index; }
  // The group that holds a word.
  __device__ uint32_t group(uint32_t index) const { return index >> log_group_words; }
  // The inclusive sum over a group's words, of which each lane has one. Lane 0's is the first of its group.
  __device__ uint32_t sum_in_group(uint32_t value) const {
    const int place = lane_id() & ((1 << log_group_words) - 1);
#pragma unroll
    for (int delta = 1; delta < kGroupWords; delta *= 2) {
      const uint32_t before = __shfl_up_sync(kFullWarp, value, delta);
      if (place >= delta) value += before;
    }
    return value;
  }
};

// The set bits of a bitmap before one of its words, in a directory of groups of kGroupWords.
__device__ inline uint32_t bits_before_word(const DirectoryParams& params, int64_t bitmap, uint32_t index) {
  const uint32_t* const word = params.word(bitmap, index);
  const int place = static_cast<int>(index % kGroupWords);
  uint32_t sum = params.directory[bitmap * params.groups + params.group(index)];
#pragma unroll
  for (int i = 1; i < kGroupWords; ++i) sum += i <= place ? __popc(word[-i]) : 0;
  return sum;
}

// Scratch of the directory of `count` bitmaps: ticket, states, directory.
inline int64_t directory_state_bytes(int64_t count, int64_t words, uint32_t log_group_words) {
  return state_bytes<ChunkGroups>(count, directory_chunks(words, log_group_words), 1);
}
inline int64_t directory_bytes(int64_t count, int64_t words, uint32_t log_group_words) {
  return directory_state_bytes(count, words, log_group_words) +
         count * directory_groups(words, log_group_words) * int64_t{sizeof(uint32_t)};
}

// Enqueues the construction of the directory in `d_scratch` and describes it for the kernels that read it.
cudaError_t make_directory(const uint32_t* d_bitmaps, int64_t count, int64_t words, uint32_t log_group_words,
                           void* d_scratch, cudaStream_t stream, DirectoryParams* directory);

}  // namespace zen::cuda
