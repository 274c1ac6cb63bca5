// CUB's DeviceSelect on the non-zeros of a tensor, timed with events: what benchmarks/peers/nonzeros.py loads.
#include <cub/device/device_select.cuh>
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/tuple.h>

#include <cstdint>

namespace {

// By its bits, as zen_jax does.
struct IsNonzero {
  const float* x;
  __device__ bool operator()(int32_t i) const { return (__float_as_uint(x[i]) << 1) != 0; }
};

struct HoldsNonzero {
  __device__ bool operator()(const thrust::tuple<int32_t, float>& entry) const {
    return (__float_as_uint(thrust::get<1>(entry)) << 1) != 0;
  }
};

struct Device {
  float* x = nullptr;
  int32_t* indices = nullptr;
  float* values = nullptr;
  int32_t* count = nullptr;
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
  cudaEvent_t begin = nullptr, end = nullptr;

  ~Device() {
    for (void* buffer : {static_cast<void*>(x), static_cast<void*>(indices), static_cast<void*>(values),
                         static_cast<void*>(count), scratch}) {
      cudaFree(buffer);
    }
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }

  // Selects (index, value) of the non-zeros: by flags, which CUB reads from an iterator, or by a predicate.
  cudaError_t select(int32_t size, bool flagged) {
    const thrust::counting_iterator<int32_t> every(0);
    const auto entries = thrust::make_zip_iterator(thrust::make_tuple(every, x));
    const auto selected = thrust::make_zip_iterator(thrust::make_tuple(indices, values));
    if (flagged) {
      const auto flags = thrust::make_transform_iterator(every, IsNonzero{x});
      return cub::DeviceSelect::Flagged(scratch, scratch_bytes, entries, flags, selected, count, size);
    }
    return cub::DeviceSelect::If(scratch, scratch_bytes, entries, selected, count, size, HoldsNonzero{});
  }
};

#define RETURN_IF_ERROR(expr)                       \
  do {                                              \
    const cudaError_t error = (expr);               \
    if (error != cudaSuccess) return error;         \
  } while (0)

}  // namespace

extern "C" const char* cub_error(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Times `repeats` selections from x [size] in host memory, after one that is not counted, into `seconds` [repeats].
// `room` bounds the non-zeros. Returns a cudaError_t; `count` becomes the number of non-zeros.
extern "C" int cub_select(const float* x, int32_t size, int32_t room, int flagged, int repeats, double* seconds,
                          int32_t* count) {
  Device device;
  RETURN_IF_ERROR(cudaMalloc(&device.x, size * sizeof(float)));
  RETURN_IF_ERROR(cudaMalloc(&device.indices, room * sizeof(int32_t)));
  RETURN_IF_ERROR(cudaMalloc(&device.values, room * sizeof(float)));
  RETURN_IF_ERROR(cudaMalloc(&device.count, sizeof(int32_t)));
  RETURN_IF_ERROR(cudaMemcpy(device.x, x, size * sizeof(float), cudaMemcpyHostToDevice));
  RETURN_IF_ERROR(device.select(size, flagged));  // no scratch yet: CUB says how much it needs
  RETURN_IF_ERROR(cudaMalloc(&device.scratch, device.scratch_bytes));
  RETURN_IF_ERROR(cudaEventCreate(&device.begin));
  RETURN_IF_ERROR(cudaEventCreate(&device.end));
  for (int i = -1; i < repeats; ++i) {
    RETURN_IF_ERROR(cudaEventRecord(device.begin));
    RETURN_IF_ERROR(device.select(size, flagged));
    RETURN_IF_ERROR(cudaEventRecord(device.end));
    RETURN_IF_ERROR(cudaEventSynchronize(device.end));
    float milliseconds = 0;
    RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, device.begin, device.end));
    if (i >= 0) seconds[i] = milliseconds * 1e-3;
  }
  return cudaMemcpy(count, device.count, sizeof(int32_t), cudaMemcpyDeviceToHost);
}
