// Everything in an instruction set except its vectors, written once: `Arch` provides a few vector operations, and the
// compiler vectorises the loops for the instruction set of the including file. All of it has internal linkage, so that
// no function built for a newer instruction set replaces the portable one at link time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/common/keys.h"
#include "xla_ffi/cpu/isa.h"

// For loops whose results may alias their operands, element for element.
#if defined(__clang__)
#define ZEN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ZEN_INDEPENDENT _Pragma("GCC ivdep")
#else
#define ZEN_INDEPENDENT
#endif

namespace zen {
namespace {

constexpr int64_t kMaskBits = 64;
constexpr int64_t kVectorEntries = 16;

// Loops over lists run to a whole number of vectors; lists have room for that.
inline int64_t padded(int64_t count) { return (count + kVectorEntries - 1) / kVectorEntries * kVectorEntries; }

template <typename Bits>
inline bool any_nonzero(const Bits* x, int64_t count) {
  Bits any = 0;
  for (int64_t i = 0; i < count; ++i) any |= static_cast<Bits>(x[i] << 1);
  return any != 0;
}

// Lists the set bits four at a time: the count of fours is predictable, the count of bits is not.
inline int64_t list_by_fours(uint64_t mask, int64_t base, uint16_t* list) {
  constexpr uint64_t kNeverZero = uint64_t{1} << 63;
  const int64_t count = __builtin_popcountll(mask);
  for (int64_t i = 0; i < count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) {
      list[i + j] = static_cast<uint16_t>(base + __builtin_ctzll(mask | kNeverZero));
      mask &= mask - 1;
    }
  }
  return count;
}

template <typename Arch>
struct IsaImpl {
  // ---- scan ----

  template <typename Bits>
  static void prefetch(const Bits* x, int64_t elements) {
    const char* from = reinterpret_cast<const char*>(x) + kScanAheadBytes;
    for (int64_t byte = 0; byte < elements * static_cast<int64_t>(sizeof(Bits)); byte += kCacheLine) {
      __builtin_prefetch(from + byte, 0, 2);
    }
  }

  template <typename Bits>
  static uint64_t units_mask(const Bits* x, int64_t width, int64_t units) {
    uint64_t mask = 0;
    for (int64_t u = 0; u < units; ++u) mask |= static_cast<uint64_t>(row_is_nonzero(x + u * width, width)) << u;
    return mask;
  }

  template <typename Bits>
  static bool row_is_nonzero(const Bits* row, int64_t width) {
    int64_t i = 0;
    for (; i + kMaskBits <= width; i += kMaskBits) {
      prefetch(row + i, kMaskBits);
      if (Arch::nonzero_mask(row + i) != 0) return true;
    }
    return any_nonzero(row + i, width - i);
  }

  // 64 units whose width divides 64: the mask of elements, folded so that a unit's first bit stands for the whole unit.
  template <typename Bits>
  static uint64_t narrow_units_mask(const Bits* x, int64_t width, uint64_t first_bits) {
    const int64_t units = kMaskBits / width;
    uint64_t mask = 0;
    for (int64_t block = 0; block < width; ++block) {
      prefetch(x + block * kMaskBits, kMaskBits);
      uint64_t elements = Arch::nonzero_mask(x + block * kMaskBits);
      for (int64_t shift = 1; shift < width; shift *= 2) elements |= elements >> shift;
      mask |= Arch::pick_bits(elements, first_bits) << (block * units);
    }
    return mask;
  }

  template <typename Bits>
  static int64_t scan(const Bits* x, int64_t width, int64_t units, uint64_t* masks, uint16_t* list) {
    const bool narrow = kMaskBits % width == 0;
    // Bits 0, width, 2 * width, ... of a mask.
    const uint64_t first_bits = width >= kMaskBits ? 1 : ~uint64_t{0} / ((uint64_t{1} << width) - 1);
    int64_t count = 0;
    for (int64_t u = 0; u < units; u += kMaskBits) {
      const Bits* block = x + u * width;
      uint64_t mask;
      if (units - u < kMaskBits) {
        mask = units_mask(block, width, units - u);
      } else if (width == 1) {
        prefetch(block, kMaskBits);
        mask = Arch::nonzero_mask(block);
      } else if (narrow) {
        mask = narrow_units_mask(block, width, first_bits);
      } else {
        mask = units_mask(block, width, kMaskBits);
      }
      masks[u / kMaskBits] = mask;
      count += Arch::list(mask, u, list + count);
    }
    return count;
  }

  // ---- hashing ----

  static void route(const uint16_t* list, int64_t count, ChunkOrigin origin, uint32_t n, uint32_t seed, int32_t* tiles,
                    uint32_t* servers) {
    // (v + 1/2) / n lies at least 1/(2n) from an integer, and for v < 2^17 its rounding error is below 2^-5 / n.
    static_assert(65535 + kMostListed < 1 << 17, "the quotient by a float reciprocal would be inexact");
    const float reciprocal = 1.0f / static_cast<float>(n);
    for (int64_t i = 0; i < padded(count); ++i) {
      const uint32_t v = origin.first + list[i];
      // Through int32_t, which vectors convert to and from in one instruction.
      const float numerator = static_cast<float>(static_cast<int32_t>(v)) + 0.5f;
      const uint32_t quotient = static_cast<uint32_t>(static_cast<int32_t>(numerator * reciprocal));
      const uint32_t tile = origin.tile + quotient;
      tiles[i] = static_cast<int32_t>(tile);
      servers[i] = server_in_tile(v - quotient * n, tile_rotation(tile, n, seed), n);
    }
  }

  static void place(const uint16_t* list, int64_t count, uint32_t tile, uint32_t server, uint32_t n, uint32_t seed,
                    uint32_t* units) {
    for (int64_t i = 0; i < padded(count); ++i) {
      const uint32_t t = list[i];
      units[i] = t * n + offset_in_tile(server, tile_rotation(tile + t, n, seed), n);
    }
  }

  // ---- bitmaps ----

  static int64_t list_bits(const uint32_t* words, int64_t begin, int64_t end, uint16_t* list) {
    int64_t count = 0;
    for (int64_t t = begin; t < end; t += kMaskBits) {
      uint64_t mask = words[t / kBitsPerWord];
      if (end - t > kBitsPerWord) mask |= static_cast<uint64_t>(words[t / kBitsPerWord + 1]) << kBitsPerWord;
      if (end - t < kMaskBits) mask &= (uint64_t{1} << (end - t)) - 1;
      count += Arch::list(mask, t - begin, list + count);
    }
    return count;
  }

  static int64_t count_bits(const uint32_t* words, int64_t count) {
    int64_t set = 0;
    for (int64_t w = 0; w < count; ++w) set += __builtin_popcount(words[w]);
    return set;
  }

  // ---- error feedback ----

  template <typename Update, typename T>
  static void accumulate(const Update* update, const T* residual, const T* velocity, Momentum<T> how, int64_t count,
                         T* total, T* new_velocity) {
    for (int64_t i = 0; i < count; i += kMaskBits) {
      const int64_t part = std::min(kMaskBits, count - i);
      prefetch(update + i, kMaskBits);
      prefetch(residual + i, kMaskBits);
      if (velocity == nullptr) {
        add(update + i, residual + i, part, total + i);
      } else {
        prefetch(velocity + i, kMaskBits);
        move(update + i, residual + i, velocity + i, how, part, total + i, new_velocity + i);
      }
    }
  }

  template <typename Update, typename T>
  static void add(const Update* update, const T* residual, int64_t count, T* total) {
    ZEN_INDEPENDENT for (int64_t i = 0; i < count; ++i) total[i] = widened(update[i]) + residual[i];
  }

  template <typename Update, typename T>
  static void move(const Update* update, const T* residual, const T* velocity, Momentum<T> how, int64_t count, T* total,
                   T* new_velocity) {
    ZEN_INDEPENDENT for (int64_t i = 0; i < count; ++i) {
      new_velocity[i] = multiply_add(how.momentum, velocity[i], widened(update[i]) * how.scale);
      total[i] = residual[i] + new_velocity[i];
    }
  }

  static float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }

  // widen() for Float16 without branches, so that it vectorises, and without intermediate subnormals.
  template <typename T>
  static Accumulator<T> widened(T x) {
    if constexpr (std::is_same_v<T, Float16>) {
      const uint32_t magnitude = x.bits & 0x7fff, sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
      const uint32_t normal = (magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000 : 0x38000000);
      const uint32_t subnormal = bits_of(float_of_bits((magnitude << 13) + 0x38800000) - 0x1p-14f);
      return float_of_bits((magnitude < 0x400 ? subnormal : normal) | sign);
    } else {
      return widen(x);
    }
  }

  template <typename Bits>
  static uint64_t reach_mask(const Bits* x, int64_t count, Bits probe) {
    if (count >= kMaskBits) return Arch::reach_mask(x, probe);
    uint64_t mask = 0;
    for (int64_t i = 0; i < count; ++i) mask |= static_cast<uint64_t>(key_of(x[i]) >= probe) << i;
    return mask;
  }

  template <typename Bits>
  static Classified classify(const Bits* x, int64_t count, Bits low, Bits high, uint16_t* reaching, uint16_t* between) {
    Classified found = {0, 0};
    for (int64_t i = 0; i < count; i += kMaskBits) {
      const uint64_t reach_low = reach_mask(x + i, count - i, low);
      if (reach_low == 0) continue;
      const uint64_t reach_high = reach_mask(x + i, count - i, high);
      found.reaching += Arch::list(reach_high, i, reaching + found.reaching);
      if (reach_low != reach_high) found.between += Arch::list(reach_low & ~reach_high, i, between + found.between);
    }
    return found;
  }

  template <typename Bits>
  static void reach(const Bits* x, int64_t count, const Bits* probes, int64_t* reach) {
    for (int64_t i = 0; i < count; i += kMaskBits) {
      for (int probe = 0; probe < kProbes; ++probe) {
        reach[probe] += __builtin_popcountll(reach_mask(x + i, count - i, probes[probe]));
      }
    }
  }

  static void draw(uint32_t first, int64_t count, uint32_t step, uint32_t* keys) {
    for (int64_t i = 0; i < count; ++i) keys[i] = fmix32((first + static_cast<uint32_t>(i)) ^ step) >> 1 | 1;
  }

  // ---- output ----

  static void drain(void* to, void* from, int64_t bytes) {
    char* const out = static_cast<char*>(to);
    char* const in = static_cast<char*>(from);
    const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kCacheLine);
    const int64_t head = misaligned == 0 ? 0 : kCacheLine - misaligned;
    int64_t byte = head < bytes ? head : bytes;
    move_bytes(out, in, byte);
    for (; byte + kCacheLine <= bytes; byte += kCacheLine) Arch::drain_line(out + byte, in + byte);
    move_bytes(out + byte, in + byte, bytes - byte);
  }

  static void move_bytes(char* to, char* from, int64_t bytes) {
    std::memcpy(to, from, bytes);
    std::memset(from, 0, bytes);
  }

  static constexpr Isa table(const char* name) {
    return {name,
            {scan<uint16_t>, scan<uint32_t>, scan<uint64_t>},
            route,
            list_bits,
            count_bits,
            place,
            drain,
            Arch::fence,
            {accumulate<Float16, float>, accumulate<BFloat16, float>, accumulate<float, float>,
             accumulate<double, double>},
            {classify<uint32_t>, classify<uint64_t>},
            {reach<uint32_t>, reach<uint64_t>},
            draw};
  }
};

}  // namespace
}  // namespace zen
