// A directory over bitmaps: how many bits are set before each group of words, so that the rank of any bit takes a
// look-up and at most kGroupWords population counts.
#pragma once

#include <cstdint>

#include "cuda/common/bits.h"
#include "cuda/look_back.cuh"

namespace zen::cuda {

constexpr int64_t kGroupWords = 8;
constexpr int64_t kGroupsPerChunk = kThreads;

ZEN_HOST_DEVICE int64_t directory_groups(int64_t words) { return ceil_div(words, kGroupWords); }

struct DirectoryParams {
  const uint32_t* bitmaps;  // [count, words]
  int64_t words;
  int64_t groups;
  int64_t chunks;  // of one bitmap
  uint32_t* ticket;
  uint32_t* states;     // [count, chunks]
  uint32_t* directory;  // [count, groups]
};

// Set bits of bitmap `bitmap` before its word `word`.
__device__ inline uint32_t rank_before_word(const DirectoryParams& params, int64_t bitmap, int64_t word) {
  const int64_t group = word / kGroupWords;
  const uint32_t* const words = params.bitmaps + bitmap * params.words;
  uint32_t rank = params.directory[bitmap * params.groups + group];
  for (int64_t i = group * kGroupWords; i < word; ++i) rank += __popc(words[i]);
  return rank;
}

// Scratch of the directory of `count` bitmaps: ticket, states, directory.
inline int64_t directory_state_bytes(int64_t count, int64_t words) {
  return kTicketBytes + count * ceil_div(directory_groups(words), kGroupsPerChunk) * kStateBytes;
}
inline int64_t directory_bytes(int64_t count, int64_t words) {
  return directory_state_bytes(count, words) + count * directory_groups(words) * int64_t{sizeof(uint32_t)};
}

// Enqueues the construction of the directory in `d_scratch` and describes it for the kernels that read it.
cudaError_t make_directory(const uint32_t* d_bitmaps, int64_t count, int64_t words, void* d_scratch,
                           cudaStream_t stream, DirectoryParams* directory);

}  // namespace zen::cuda
