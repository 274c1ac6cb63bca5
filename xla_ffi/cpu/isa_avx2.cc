// x86-64 with AVX2, FMA and BMI2. The pragma follows the system headers, so only our own functions are built for it.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <vector>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2,popcnt")
#endif

#include "xla_ffi/cpu/isa_impl.h"

namespace zen {
namespace {

struct Avx2 {
  static __m256i load(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }

  static uint64_t nonzero_mask(const uint16_t* x) {
    uint64_t zero = 0;
    for (int half = 0; half < 2; ++half) {
      const __m256i low = is_zero(load(x + 32 * half), uint16_t{});
      const __m256i high = is_zero(load(x + 32 * half + 16), uint16_t{});
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
      zero |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(bytes))) << (32 * half);
    }
    return ~zero;
  }

  static uint64_t nonzero_mask(const uint32_t* x) {
    uint64_t zero = 0;
    for (int i = 0; i < 8; ++i) {
      const __m256i lanes = is_zero(load(x + 8 * i), uint32_t{});
      zero |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))) << (8 * i);
    }
    return ~zero;
  }

  static uint64_t nonzero_mask(const uint64_t* x) {
    uint64_t zero = 0;
    for (int i = 0; i < 16; ++i) {
      const __m256i lanes = is_zero(load(x + 4 * i), uint64_t{});
      zero |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(lanes))) << (4 * i);
    }
    return ~zero;
  }

  // Signed comparisons suffice: keys have no sign, and a probe minus one is no more than the largest key.
  static uint64_t reach_mask(const uint32_t* x, uint32_t probe) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), below = _mm256_set1_epi32(static_cast<int>(probe - 1));
    uint64_t mask = 0;
    for (int i = 0; i < 8; ++i) {
      const __m256i lanes = _mm256_cmpgt_epi32(_mm256_and_si256(load(x + 8 * i), magnitude), below);
      mask |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))) << (8 * i);
    }
    return mask;
  }

  static uint64_t reach_mask(const uint64_t* x, uint64_t probe) {
    const __m256i magnitude = _mm256_set1_epi64x(0x7fffffffffffffff);
    const __m256i below = _mm256_set1_epi64x(static_cast<int64_t>(probe - 1));
    uint64_t mask = 0;
    for (int i = 0; i < 16; ++i) {
      const __m256i lanes = _mm256_cmpgt_epi64(_mm256_and_si256(load(x + 4 * i), magnitude), below);
      mask |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(lanes))) << (4 * i);
    }
    return mask;
  }

  static uint64_t pick_bits(uint64_t mask, uint64_t which) { return _pext_u64(mask, which); }

  static int64_t list(uint64_t mask, int64_t base, uint16_t* out) { return list_by_fours(mask, base, out); }

  static void drain_line(char* to, char* from) {
    for (int half = 0; half < kCacheLine; half += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + half), load(from + half));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(from + half), _mm256_setzero_si256());
    }
  }

  static void fence() { _mm_sfence(); }

 private:
  static __m256i is_zero(__m256i v, uint16_t) {
    return _mm256_cmpeq_epi16(_mm256_slli_epi16(v, 1), _mm256_setzero_si256());
  }
  static __m256i is_zero(__m256i v, uint32_t) {
    return _mm256_cmpeq_epi32(_mm256_slli_epi32(v, 1), _mm256_setzero_si256());
  }
  static __m256i is_zero(__m256i v, uint64_t) {
    return _mm256_cmpeq_epi64(_mm256_slli_epi64(v, 1), _mm256_setzero_si256());
  }
};

}  // namespace

const Isa kAvx2Isa = IsaImpl<Avx2>::table("avx2");

}  // namespace zen

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // __x86_64__
