#include "cuda/rank_directory.cuh"

namespace zen::cuda {
namespace {

// Each thread counts one group.
__global__ void __launch_bounds__(kThreads) fill_directory(const __grid_constant__ DirectoryParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  uint32_t* const shared_ticket = arena.take<uint32_t>(1);
  uint32_t* const shared_before = arena.take<uint32_t>(1);

  const int64_t id = take_ticket(params.ticket, shared_ticket);
  const int64_t bitmap = id / params.chunks;
  const int64_t chunk = id - bitmap * params.chunks;
  const int64_t group = chunk * kGroupsPerChunk + threadIdx.x;
  const uint32_t* const words = params.bitmaps + bitmap * params.words;
  uint32_t count = 0;
#pragma unroll
  for (int64_t i = 0; i < kGroupWords; ++i) {
    const int64_t word = group * kGroupWords + i;
    if (word < params.words) count += __popc(words[word]);
  }
  const BlockSum sum = block_exclusive_sum(count, warp_totals);
  if (warp_id() == 0) {
    uint32_t* const states = params.states + bitmap * params.chunks;
    if (lane_id() == 0) publish(states + chunk, partial_state(sum.total));
    const uint32_t before = look_back_one(states, chunk, sum.total);
    if (lane_id() == 0) *shared_before = before;
  }
  __syncthreads();
  if (group < params.groups) params.directory[bitmap * params.groups + group] = *shared_before + sum.before;
}

}  // namespace

cudaError_t make_directory(const uint32_t* d_bitmaps, int64_t count, int64_t words, void* d_scratch,
                           cudaStream_t stream, DirectoryParams* directory) {
  const int64_t groups = directory_groups(words);
  const int64_t chunks = ceil_div(groups, kGroupsPerChunk);
  const int64_t state_bytes = directory_state_bytes(count, words);
  uint32_t* const scratch = static_cast<uint32_t*>(d_scratch);
  *directory = {d_bitmaps,
                words,
                groups,
                chunks,
                scratch,
                scratch + kTicketBytes / kStateBytes,
                scratch + state_bytes / kStateBytes};
  ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_scratch, 0, state_bytes, stream));
  SharedArena arena = SharedArena::for_measuring();
  arena.take<uint32_t>(kWarps);
  arena.take<uint32_t>(1);
  arena.take<uint32_t>(1);
  return launch(fill_directory, count * chunks, arena.used(), stream, *directory);
}

}  // namespace zen::cuda
