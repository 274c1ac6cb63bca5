// Copies between global and shared memory that a block need not wait for while it has other work. On sm_90 the copy
// engine makes them, so that they take no registers; elsewhere the threads make them. All addresses and sizes are
// multiples of 16, and all threads of the block call every function.
#pragma once

#include <cstdint>

#include "cuda/vectors.cuh"

namespace zen::cuda {

#if __CUDA_ARCH__ >= 900
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
#else
// Without hints to the cache, which only instructions for global memory have: `from` may be shared memory.
__device__ inline void copy_with_threads(void* to, const void* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes / kVectorBytes; i += kThreads) {
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  }
}
#endif

// Loads that arrive together, once. For the next a block calls retire() and makes another of these.
class BulkLoads {
 public:
  // `arrived` is a word of shared memory. A barrier must follow before the other functions are called, after all that
  // the block does with the memory that it loads to.
  __device__ explicit BulkLoads(uint64_t* arrived) : arrived_(arrived) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived_)) : "memory");
#endif
  }

  // Announces the bytes of all loads, which must follow. The copy engine sees what the block did before the barrier.
  __device__ void expect(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived_)), "r"(bytes)
                 : "memory");
#endif
  }

  __device__ void load(void* to, const void* from, uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(arrived_))
                 : "memory");
#else
    copy_with_threads(to, from, bytes);
#endif
  }

  // Returns once they have arrived for all threads.
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{ .reg .pred done;\n"
          "  mbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0;\n"
          "  selp.u32 %0, 1, 0, done; }"
          : "=r"(done)
          : "r"(shared_address(arrived_))
          : "memory");
    }
#else
    __syncthreads();
#endif
  }

  // After a barrier that follows wait().
  __device__ void retire() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(arrived_)) : "memory");
#endif
  }

 private:
  uint64_t* arrived_;
};

// Between writing to shared memory and storing it in bulk: a barrier that the copy engine, too, respects.
__device__ inline void barrier_before_bulk_store() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
}

__device__ inline void bulk_store(void* to, const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x != 0) return;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
#else
  copy_with_threads(to, from, bytes);
#endif
}

// Waits until the shared memory of all bulk stores has been read: a block may not end before.
__device__ inline void finish_bulk_stores() {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x != 0) return;
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

}  // namespace zen::cuda
