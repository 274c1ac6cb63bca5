#pragma once

#include "cuda/common/float16.h"

// Not _Float16, which g++ 12 on aarch64 and older compilers lack.
struct __half {
  zen::Float16 value;
};
inline float __half2float(__half x) { return zen::widen(x.value); }
inline __half __float2half_rn(float x) {
  __half rounded;
  zen::round_to(x, &rounded.value);
  return rounded;
}
