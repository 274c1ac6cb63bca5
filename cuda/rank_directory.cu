#include "cuda/rank_directory.cuh"

#include "cuda/compaction.cuh"

namespace zen::cuda {
namespace {

// Set bits of this lane's group: lane i has group i of 32. A warp loads rows of 32 consecutive words, whole groups, so
// that the bitmap's alignment does not matter: `words` begins at the lane's in the first row, and has `left`.
template <int kGroupWords>
__device__ inline uint32_t count_group(const uint32_t* words, int left) {
  constexpr int kRowGroups = kWarpSize / kGroupWords;
  uint32_t counts[kGroupWords];
#pragma unroll
  for (int row = 0; row < kGroupWords; ++row) {
    const int word = row * kWarpSize;
    counts[row] = word < left ? __popc(words[word]) : 0;
  }
  // The lanes that share a group swap halves of their rows until each has one row, summed over them.
#pragma unroll
  for (int half = kGroupWords / 2; half > 0; half /= 2) {
    const bool upper = lane_id() & half;
#pragma unroll
    for (int row = 0; row < half; ++row) {
      const uint32_t given = upper ? counts[row] : counts[row + half];
      const uint32_t kept = upper ? counts[row + half] : counts[row];
      counts[row] = kept + __shfl_xor_sync(kFullWarp, given, half);
    }
  }
  return __shfl_sync(kFullWarp, counts[0], lane_id() % kRowGroups * kGroupWords + lane_id() / kRowGroups);
}

// Each warp counts consecutive groups.
template <int kGroupWords>
__global__ void __launch_bounds__(kThreads, kGroupWords < 4 ? 2 : 4)
    fill_directory(const __grid_constant__ DirectoryParams params) {
  constexpr int kGroupsPerThread = words_per_thread(kGroupWords) / kGroupWords;
  constexpr int kWarpWords = kWarpSize * kGroupWords;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const CompactionShared shared(arena);

  const uint32_t id = take_ticket(params.ticket, shared.ticket);
  const uint32_t chunks = static_cast<uint32_t>(params.chunks);  // no more than blocks
  const int64_t bitmap = id / chunks;
  const int64_t chunk = id % chunks;
  const int64_t first_group = (chunk * kWarps + warp_id()) * kWarpSize * kGroupsPerThread;
  const int64_t first_word = first_group * kGroupWords + lane_id();
  const uint32_t* const words = params.bitmaps + bitmap * params.words + first_word;
  const int left = static_cast<int>(min(params.words - first_word, int64_t{kWarpSize * words_per_thread(kGroupWords)}));
  uint32_t before[kGroupsPerThread];  // set bits of the warp before the lane's groups
  uint32_t warp_total = 0;
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    const uint32_t count = count_group<kGroupWords>(words + i * kWarpWords, left - i * kWarpWords);
    const uint32_t inclusive = warp_inclusive_sum(count);
    before[i] = warp_total + inclusive - count;
    warp_total += __shfl_sync(kFullWarp, inclusive, kWarpSize - 1);
  }
  // Counted for the last lane, so that none of its own warp's bits come before a lane.
  const BlockSum sum = block_exclusive_sum(lane_id() == kWarpSize - 1 ? warp_total : 0, shared.warp_totals);
  if (warp_id() == 0) {
    const ChunkGroups states(params.states + bitmap * ChunkGroups::words(chunks, 1), chunks, 1);
    if (lane_id() == 0) states.publish_count(chunk, 0, sum.total);
    const uint32_t before_chunk = states.look_back<1>(LaneGroup(kWarpSize), 0, chunk, true);
    if (lane_id() == 0) {
      states.publish_end(chunk, 0, before_chunk + sum.total);
      *shared.before = before_chunk;
    }
  }
  __syncthreads();
  const uint32_t before_warp = *shared.before + sum.before;
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    const int64_t group = first_group + i * kWarpSize + lane_id();
    if (group < params.groups) params.directory[bitmap * params.groups + group] = before_warp + before[i];
  }
}

}  // namespace

cudaError_t make_directory(const uint32_t* d_bitmaps, int64_t count, int64_t words, uint32_t log_group_words,
                           void* d_scratch, cudaStream_t stream, DirectoryParams* directory) {
  const int64_t chunks = directory_chunks(words, log_group_words);
  const int64_t before_directory = directory_state_bytes(count, words, log_group_words);
  uint32_t* const scratch = static_cast<uint32_t*>(d_scratch);
  *directory = {d_bitmaps,
                words,
                directory_groups(words, log_group_words),
                chunks,
                scratch,
                scratch + kTicketBytes / kStateBytes,
                scratch + before_directory / kStateBytes,
                log_group_words};
  ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_scratch, 0, before_directory, stream));
  constexpr void (*kKernels[])(DirectoryParams) = {fill_directory<1>, fill_directory<2>, fill_directory<4>,
                                                   fill_directory<kGroupWords>};
  return launch(kKernels[log_group_words], count * chunks, shared_bytes<CompactionShared>(), stream, *directory);
}

}  // namespace zen::cuda
