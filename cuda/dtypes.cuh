// How each dtype is summed: widened, added and divided in its accumulator type, and rounded once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/element.h"

namespace zen::cuda {

struct Float32 {
  using Stored = float;
  using Sum = float;
  __device__ static Sum widen(Stored x) { return x; }
  __device__ static Stored round(Sum x) { return x; }
};

struct Float64 {
  using Stored = double;
  using Sum = double;
  __device__ static Sum widen(Stored x) { return x; }
  __device__ static Stored round(Sum x) { return x; }
};

struct Float16 {
  using Stored = __half;
  using Sum = float;
  __device__ static Sum widen(Stored x) { return __half2float(x); }
  __device__ static Stored round(Sum x) { return __float2half_rn(x); }
};

struct Bfloat16 {
  using Stored = __nv_bfloat16;
  using Sum = float;
  __device__ static Sum widen(Stored x) { return __bfloat162float(x); }
  __device__ static Stored round(Sum x) { return __float2bfloat16_rn(x); }
};

// Returns visit(dtype) with the type that sums such elements.
template <typename Visit>
cudaError_t visit_dtype(Element element, Visit visit) {
  switch (element) {
    case Element::kFloat32:
      return visit(Float32());
    case Element::kFloat64:
      return visit(Float64());
    case Element::kFloat16:
      return visit(Float16());
    case Element::kBfloat16:
      return visit(Bfloat16());
  }
  return cudaErrorInvalidValue;
}

}  // namespace zen::cuda
