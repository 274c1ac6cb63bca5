// The part of CUDA C++ that the kernels use, on the host. Every thread of a block is a fiber; barriers and warp
// intrinsics switch between them, and the order in which fibers and blocks run is random, so that a missing barrier
// or a wait for a block that is not running shows up as a wrong result or as an abort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)

namespace zen::emulation {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

Index thread_index();
Index block_index();
unsigned char* shared_memory();
// Aborts if the pointer is to the block's shared memory: the instructions that take it know only global memory.
void check_global(const void* pointer);

void block_barrier();
// Waits for the warp's 32 lanes and returns the values that they passed.
const uint32_t* exchange(uint32_t value);
// Lets other fibers run, now and then or always.
void maybe_yield();
void yield();

cudaError_t run_grid(unsigned blocks, unsigned threads, size_t shared_bytes, const std::function<void()>& kernel);

// Set by tests: the seed of the schedule and how many blocks are resident at once.
void set_schedule(uint64_t seed, int resident_blocks);

// Set by tests: what the device gives a block.
inline int most_shared_bytes = 227 << 10;
inline constexpr int kMultiprocessors = 1;  // so that few blocks are many waves

}  // namespace zen::emulation

#define threadIdx (::zen::emulation::thread_index())
#define blockIdx (::zen::emulation::block_index())
#define ZEN_DYNAMIC_SHARED(name) unsigned char* const name = ::zen::emulation::shared_memory()

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  return bytes <= zen::emulation::most_shared_bytes ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? zen::emulation::kMultiprocessors
                                                       : zen::emulation::most_shared_bytes;
  return cudaSuccess;
}

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args... args) {
  if (config->dynamicSmemBytes > static_cast<size_t>(zen::emulation::most_shared_bytes)) return cudaErrorInvalidValue;
  return zen::emulation::run_grid(config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes,
                                  [=] { kernel(args...); });
}

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
template <typename T>
T __ldcs(const T* from) {
  zen::emulation::check_global(from);
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  zen::emulation::check_global(to);
  *to = value;
}
template <typename T>
void __stcg(T* to, T value) {
  zen::emulation::check_global(to);
  *to = value;
}

using std::min;
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline void __syncthreads() { zen::emulation::block_barrier(); }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { zen::emulation::yield(); }
inline void __syncwarp() { zen::emulation::exchange(0); }
inline int zen_emulated_lane() { return static_cast<int>(threadIdx.x % 32); }
inline uint32_t __shfl_sync(uint32_t, uint32_t value, int lane) { return zen::emulation::exchange(value)[lane % 32]; }
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int mask) {
  return zen::emulation::exchange(value)[zen_emulated_lane() ^ mask];
}
inline uint32_t __shfl_up_sync(uint32_t, uint32_t value, int delta) {
  const uint32_t* const values = zen::emulation::exchange(value);
  return zen_emulated_lane() >= delta ? values[zen_emulated_lane() - delta] : value;
}
inline uint32_t __match_any_sync(uint32_t, uint32_t value) {
  const uint32_t* const values = zen::emulation::exchange(value);
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= static_cast<uint32_t>(values[lane] == value) << lane;
  return mask;
}
inline uint32_t __ballot_sync(uint32_t, bool predicate) {
  const uint32_t* const values = zen::emulation::exchange(predicate);
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= values[lane] << lane;
  return mask;
}
inline uint32_t __reduce_or_sync(uint32_t, uint32_t value) {
  const uint32_t* const values = zen::emulation::exchange(value);
  uint32_t all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= values[lane];
  return all;
}
inline uint32_t __reduce_add_sync(uint32_t, uint32_t value) {
  const uint32_t* const values = zen::emulation::exchange(value);
  return std::accumulate(values, values + 32, 0u);
}
inline bool __any_sync(uint32_t mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }

template <typename T>
T atomicAdd(T* address, T value) {
  zen::emulation::maybe_yield();
  const T old = *address;
  *address = old + value;
  return old;
}
inline uint32_t atomicOr(uint32_t* address, uint32_t value) {
  zen::emulation::maybe_yield();
  const uint32_t old = *address;
  *address = old | value;
  return old;
}
inline uint32_t atomicCAS(uint32_t* address, uint32_t expected, uint32_t value) {
  zen::emulation::maybe_yield();
  const uint32_t old = *address;
  if (old == expected) *address = value;
  return old;
}

#define __NV_ATOMIC_RELAXED 0
#define __NV_THREAD_SCOPE_DEVICE 0
inline void __nv_atomic_store_n(uint32_t* address, uint32_t value, int, int) {
  zen::emulation::maybe_yield();
  *address = value;
}
inline uint32_t __nv_atomic_load_n(uint32_t* address, int, int) {
  zen::emulation::yield();
  return *address;
}
