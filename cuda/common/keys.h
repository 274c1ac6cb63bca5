// The keys by which selections compare floats, and the bits that they are made of.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/common/hash.h"

namespace zen {

// The unsigned integer as wide as a type.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <typename T>
ZEN_HOST_DEVICE BitsOf<T> bits_of(T x) {
  BitsOf<T> bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The key that no element reaches.
template <typename Bits>
constexpr Bits kTopKey = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

// A float's bits without its sign: keys are ordered like magnitudes, with NaN above infinity.
template <typename Bits>
ZEN_HOST_DEVICE Bits key_of(Bits bits) {
  return bits & static_cast<Bits>(kTopKey<Bits> - 1);
}

// The key of an infinite float or double.
template <typename T>
constexpr BitsOf<T> kInfinity = sizeof(T) == 4 ? 0x7f800000u : 0x7ff0000000000000u;

// A step of the search for a threshold counts how many keys reach each of so many probes.
constexpr int kProbes = 4;

}  // namespace zen
