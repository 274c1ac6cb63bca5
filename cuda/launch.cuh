// How every kernel is launched: 512 threads a block, dynamic shared memory, errors returned.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace zen::cuda {

constexpr int kThreads = 512;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr uint32_t kFullWarp = 0xffffffffu;

// Shared memory that a block may have without asking for more.
constexpr size_t kDefaultSharedBytes = 48 << 10;

#define ZEN_RETURN_IF_ERROR(expr)                   \
  do {                                              \
    const cudaError_t zen_error = (expr);           \
    if (zen_error != cudaSuccess) return zen_error; \
  } while (0)

// The host emulation of the kernels defines its own.
#ifndef ZEN_DYNAMIC_SHARED
#define ZEN_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

// Hands out consecutive arrays of a block's dynamic shared memory, aligned to 16 bytes.
class SharedArena {
 public:
  __host__ __device__ explicit SharedArena(unsigned char* base) : base_(base) {}

  // An arena on which the host repeats a kernel's calls, to learn how many bytes to ask for.
  static SharedArena for_measuring() { return SharedArena(reinterpret_cast<unsigned char*>(kLineBytes)); }

  template <typename T>
  __host__ __device__ T* take(size_t count) {
    T* const array = reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * sizeof(T), 16);
    return array;
  }

  // For bulk copies: to an address that does not begin a line, the copy engine loads at three quarters of the speed.
  template <typename T>
  __host__ __device__ T* take_lines(size_t count) {
    used_ = round_up(used_, kLineBytes);
    return take<T>(count);
  }

  __host__ __device__ size_t used() const { return used_; }

 private:
  static constexpr size_t kLineBytes = 128;

  __host__ __device__ static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

  unsigned char* base_;
  size_t used_ = 0;
};

// The bytes of a kernel's layouts: structs whose constructors take their arrays from an arena.
template <typename... Layouts, typename... Args>
size_t shared_bytes(const Args&... args) {
  SharedArena arena = SharedArena::for_measuring();
  (static_cast<void>(Layouts(arena, args...)), ...);
  return arena.used();
}

// Of the current device.
inline cudaError_t device_attribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  ZEN_RETURN_IF_ERROR(cudaGetDevice(&device));
  return cudaDeviceGetAttribute(value, attribute, device);
}

// The most dynamic shared memory that the current device gives a block on request.
inline cudaError_t most_shared_bytes(int* bytes) {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes);
}

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), int64_t blocks, size_t shared_bytes, cudaStream_t stream, Args... args) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidConfiguration;
  if (shared_bytes > kDefaultSharedBytes) {
    // Not just what this launch needs: the limit is the kernel's, and another thread may soon launch it with more.
    int most = 0;
    ZEN_RETURN_IF_ERROR(most_shared_bytes(&most));
    ZEN_RETURN_IF_ERROR(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace zen::cuda
