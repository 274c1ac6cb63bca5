// Stands in for the CUDA runtime where the kernels are compiled for the host, to test them without a GPU.
#pragma once

#include <cstddef>
#include <cstring>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = void*;

inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  std::memset(pointer, value, bytes);
  return cudaSuccess;
}
