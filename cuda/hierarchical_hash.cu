#include "cuda/block_scan.cuh"
#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/hierarchical_hash.h"

namespace zen::cuda {
namespace {

// Parallel slots that a thread and a block of count_parallel examine.
constexpr int kSlotsOfThread = 4;
constexpr int64_t kSlotsOfBlock = kSlotsOfThread * kThreads;

struct HierarchicalHashParams {
  HierarchicalHashProblem problem;
  uint32_t seed;
  const int32_t* indices;
  uint32_t* memory;
  int32_t* counts;
  int32_t* overflow;
};

// Writes to the first free one of the slots h_1 to h_k, if there is one.
__device__ bool place(const HierarchicalHashProblem& problem, uint32_t seed, uint32_t* memory, uint32_t index) {
  for (int64_t i = 1; problem.r1 > 0 && i <= problem.k; ++i) {
    const uint32_t slot = hash_family(index, static_cast<uint32_t>(i), static_cast<uint32_t>(problem.r1), seed);
    if (atomicCAS(memory + slot, kEmptySlot, index) == kEmptySlot) return true;
  }
  return false;
}

// Until count_parallel adds the others, the counts cover the indices that go to the serial slots, with or without room
// there: they are the atomic counters of Algorithm 1.
__global__ void __launch_bounds__(kThreads) hash_indices(const __grid_constant__ HierarchicalHashParams params) {
  const HierarchicalHashProblem& problem = params.problem;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t batch = id / problem.indices;
  if (batch >= problem.batch) return;
  const uint32_t index = static_cast<uint32_t>(params.indices[id]);
  if (index == kEmptySlot) return;
  const int64_t partition = batch * problem.n + hash_family(index, 0, static_cast<uint32_t>(problem.n), params.seed);
  uint32_t* const memory = params.memory + partition * (problem.r1 + problem.r2);
  if (place(problem, params.seed, memory, index)) return;
  const int32_t serial = atomicAdd(params.counts + partition, 1);
  if (serial < problem.r2) {
    memory[problem.r1 + serial] = index;
  } else {
    atomicAdd(params.overflow + batch, 1);
  }
}

__global__ void __launch_bounds__(kThreads) count_parallel(const __grid_constant__ HierarchicalHashParams params) {
  const HierarchicalHashProblem& problem = params.problem;
  const int64_t pieces = ceil_div(problem.r1, kSlotsOfBlock);
  const int64_t partition = blockIdx.x / pieces;
  const int64_t first = (blockIdx.x - partition * pieces) * kSlotsOfBlock + threadIdx.x;
  const uint32_t* const memory = params.memory + partition * (problem.r1 + problem.r2);
  uint32_t taken = 0;
#pragma unroll
  for (int k = 0; k < kSlotsOfThread; ++k) {
    const int64_t slot = first + k * kThreads;
    taken += slot < problem.r1 && memory[slot] != kEmptySlot;
  }
  const uint32_t sum = warp_inclusive_sum(taken);
  if (lane_id() == kWarpSize - 1) atomicAdd(params.counts + partition, static_cast<int32_t>(sum));
}

}  // namespace

cudaError_t hierarchical_hash(const HierarchicalHashProblem& problem, uint32_t seed, const int32_t* d_indices,
                              uint32_t* d_memory, int32_t* d_counts, int32_t* d_overflow, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  const int64_t partitions = problem.batch * problem.n;
  const size_t memory_bytes = partitions * (problem.r1 + problem.r2) * sizeof(uint32_t);
  static_assert(kEmptySlot == 0xffffffffu, "a memset of bytes 0xff empties the memory");
  if (memory_bytes > 0) ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_memory, 0xff, memory_bytes, stream));
  ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_counts, 0, partitions * sizeof(int32_t), stream));
  ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_overflow, 0, problem.batch * sizeof(int32_t), stream));
  const HierarchicalHashParams params = {problem, seed, d_indices, d_memory, d_counts, d_overflow};
  ZEN_RETURN_IF_ERROR(launch(hash_indices, ceil_div(problem.batch * problem.indices, kThreads), 0, stream, params));
  return launch(count_parallel, partitions * ceil_div(problem.r1, kSlotsOfBlock), 0, stream, params);
}

}  // namespace zen::cuda
