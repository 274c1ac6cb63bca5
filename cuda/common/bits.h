// Bit tests and bit packing that the CPU and the CUDA kernels share.
#pragma once

#include <cstdint>

#include "cuda/common/hash.h"

namespace zen {

// Whether a float given by its bits is non-zero. The sign is shifted out, so -0.0 is zero; NaN and subnormals are not.
template <typename Bits>
ZEN_HOST_DEVICE bool is_nonzero(Bits bits) {
  return static_cast<Bits>(bits << 1) != 0;
}

// A float's bits, with those of -0.0 made those of 0.0.
template <typename Bits>
ZEN_HOST_DEVICE Bits without_negative_zero(Bits bits) {
  return is_nonzero(bits) ? bits : Bits{0};
}

// Unit t of a shard is bit t % 32 (least significant first) of word t / 32.
constexpr int64_t kBitsPerWord = 32;

ZEN_HOST_DEVICE int64_t bitmap_words(int64_t units) { return (units + kBitsPerWord - 1) / kBitsPerWord; }

ZEN_HOST_DEVICE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace zen
