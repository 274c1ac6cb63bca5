// Division of small numbers by a divisor that a kernel does not know at compile time, without a division instruction.
#pragma once

#include <cstdint>

#include "cuda/common/hash.h"

namespace zen {

// Exact for numerators v with v * divisor < 2^31: the reciprocal is too large by less than one part in 2^31 / divisor.
struct SmallDivisor {
  uint32_t divisor;
  uint32_t reciprocal;  // ceil(2^31 / divisor)

  SmallDivisor() = default;
  explicit SmallDivisor(uint32_t d)
      : divisor(d), reciprocal(static_cast<uint32_t>(((uint64_t{1} << 31) + d - 1) / d)) {}

  ZEN_HOST_DEVICE uint32_t quotient(uint32_t v) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(2 * v) * reciprocal) >> 32);
  }
  ZEN_HOST_DEVICE uint32_t remainder(uint32_t v, uint32_t quotient) const { return v - quotient * divisor; }
};

}  // namespace zen
