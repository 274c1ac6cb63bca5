// Inputs that kernels must survive: densities from nothing to everything, and every kind of float by its bits.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/common/bits.h"

namespace zen {

constexpr double kDensities[] = {0.0, 0.05, 1.0};

// The bits of NaN, infinity, the smallest subnormal, -0.0 (a zero) and ordinary numbers of a float as wide as Bits.
template <typename Bits>
Bits special_bits(uint64_t choice) {
  constexpr int kWidth = 8 * sizeof(Bits);
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (kWidth - 1));
  switch (choice % 8) {
    case 0:
      return static_cast<Bits>(~kSign);  // NaN, all ones
    case 1:
      return static_cast<Bits>(kSign | 1);  // smallest negative subnormal
    case 2:
      return 1;
    case 3:
      return kSign;  // -0.0
    default:
      return static_cast<Bits>((choice >> 3) * 0x9e3779b97f4a7c15u >> (64 - kWidth));
  }
}

template <typename Bits>
std::vector<Bits> sparse_input(int64_t elements, double density, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bits> x(elements);
  for (Bits& bits : x) {
    if (std::generate_canonical<double, 32>(random) < density) bits = special_bits<Bits>(random());
  }
  return x;
}

template <typename Bits>
bool unit_is_nonzero(const Bits* unit, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    if (is_nonzero(unit[i])) return true;
  }
  return false;
}

}  // namespace zen
