#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/hierarchical_hash.h"
#include "cuda/look_back.cuh"

namespace zen::cuda {
namespace {

struct HierarchicalHashParams {
  HierarchicalHashProblem problem;
  uint32_t seed;
  const int32_t* indices;
  uint32_t* memory;
  int32_t* counts;
  int32_t* overflow;
};

__device__ bool claim(uint32_t* slot, uint32_t index) { return atomicCAS(slot, kEmptySlot, index) == kEmptySlot; }

// Appends to the serial slots. They fill from the front and are never emptied, so a binary search finds the end
// without a counter; whoever loses the race for it moves on.
__device__ bool append(uint32_t* serial, int64_t size, uint32_t index) {
  int64_t low = 0, high = size;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (observe(serial + middle) == kEmptySlot) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (; low < size; ++low) {
    if (claim(serial + low, index)) return true;
  }
  return false;
}

__device__ bool place(const HierarchicalHashProblem& problem, uint32_t seed, uint32_t* memory, uint32_t index) {
  for (int64_t i = 1; problem.r1 > 0 && i <= problem.k; ++i) {
    const uint32_t slot =
        zen::hierarchical_hash(index, static_cast<uint32_t>(i), static_cast<uint32_t>(problem.r1), seed);
    if (claim(memory + slot, index)) return true;
  }
  return append(memory + problem.r1, problem.r2, index);
}

__global__ void __launch_bounds__(kThreads) hash_indices(const __grid_constant__ HierarchicalHashParams params) {
  const HierarchicalHashProblem& problem = params.problem;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t batch = id / problem.indices;
  if (batch >= problem.batch) return;
  const uint32_t index = static_cast<uint32_t>(params.indices[id]);
  if (index == kEmptySlot) return;
  const int64_t partition =
      batch * problem.n + zen::hierarchical_hash(index, 0, static_cast<uint32_t>(problem.n), params.seed);
  atomicAdd(params.counts + partition, 1);
  uint32_t* const memory = params.memory + partition * (problem.r1 + problem.r2);
  if (!place(problem, params.seed, memory, index)) atomicAdd(params.overflow + batch, 1);
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
  return launch(hash_indices, ceil_div(problem.batch * problem.indices, kThreads), 0, stream, params);
}

}  // namespace zen::cuda
