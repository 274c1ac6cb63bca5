// The 16-bit floats by their bits: exact widening to float, and rounding back to nearest even. Integer arithmetic only,
// so subnormals survive whatever the thread's flush-to-zero mode is.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/common/bits.h"
#include "cuda/common/keys.h"

namespace zen {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

ZEN_HOST_DEVICE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

ZEN_HOST_DEVICE float widen(BFloat16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }

ZEN_HOST_DEVICE float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = x.bits >> 10 & 0x1f;
  uint32_t mantissa = x.bits & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return float_of_bits(sign);
  const int shift = __builtin_clz(mantissa) - 21;  // brings the leading one to bit 10
  mantissa = mantissa << shift & 0x3ff;
  return float_of_bits(sign | static_cast<uint32_t>(113 - shift) << 23 | mantissa << 13);
}

ZEN_HOST_DEVICE void round_to(float value, BFloat16* out) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    out->bits = static_cast<uint16_t>(bits >> 16 | 0x40);  // a NaN stays a NaN without its low bits
  } else {
    out->bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

ZEN_HOST_DEVICE void round_to(float value, Float16* out) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x1ff);
  } else if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // normal: rebias the exponent, round at bit 13
    half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else if (magnitude >= 0x33000000) {  // subnormal: shift the whole mantissa into place
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t shift = 126 - (magnitude >> 23);
    const uint32_t rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    half = mantissa >> shift;
    half += rest > tie || (rest == tie && (half & 1));
  } else {
    half = 0;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

// The same number, with -0.0 made 0.0. Floats must not be flushed.
ZEN_HOST_DEVICE float without_negative_zero(float x) { return x == 0 ? 0 : x; }
ZEN_HOST_DEVICE double without_negative_zero(double x) { return x == 0 ? 0 : x; }
ZEN_HOST_DEVICE BFloat16 without_negative_zero(BFloat16 x) { return {without_negative_zero(x.bits)}; }
ZEN_HOST_DEVICE Float16 without_negative_zero(Float16 x) { return {without_negative_zero(x.bits)}; }

// The type in which sums accumulate.
template <typename T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

ZEN_HOST_DEVICE float widen(float x) { return x; }
ZEN_HOST_DEVICE double widen(double x) { return x; }
ZEN_HOST_DEVICE void round_to(float value, float* out) { *out = value; }
ZEN_HOST_DEVICE void round_to(double value, double* out) { *out = value; }

}  // namespace zen
