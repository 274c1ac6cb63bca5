// x86-64 with AVX-512 (from Ice Lake and Zen 4 on). The pragma follows the system headers, so only our own functions
// are built for it.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <vector>

#if defined(__clang__)
#pragma clang attribute push(                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx2,fma,bmi,bmi2,popcnt"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx2,fma,bmi,bmi2,popcnt,prefer-vector-width=512")
#endif

#include "xla_ffi/cpu/isa_impl.h"

namespace zen {
namespace {

struct Avx512 {
  static __m512i load(const void* x) { return _mm512_loadu_si512(x); }

  static uint64_t nonzero_mask(const uint16_t* x) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    const uint64_t low = _mm512_test_epi16_mask(load(x), magnitude);
    const uint64_t high = _mm512_test_epi16_mask(load(x + 32), magnitude);
    return low | high << 32;
  }

  static uint64_t nonzero_mask(const uint32_t* x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    uint64_t mask = 0;
    for (int i = 0; i < 4; ++i) {
      mask |= static_cast<uint64_t>(_mm512_test_epi32_mask(load(x + 16 * i), magnitude)) << (16 * i);
    }
    return mask;
  }

  static uint64_t nonzero_mask(const uint64_t* x) {
    const __m512i magnitude = _mm512_set1_epi64(0x7fffffffffffffff);
    uint64_t mask = 0;
    for (int i = 0; i < 8; ++i) {
      mask |= static_cast<uint64_t>(_mm512_test_epi64_mask(load(x + 8 * i), magnitude)) << (8 * i);
    }
    return mask;
  }

  static uint64_t reach_mask(const uint32_t* x, uint32_t probe) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), bound = _mm512_set1_epi32(static_cast<int>(probe));
    uint64_t mask = 0;
    for (int i = 0; i < 4; ++i) {
      const __m512i keys = _mm512_and_si512(load(x + 16 * i), magnitude);
      mask |= static_cast<uint64_t>(_mm512_cmpge_epu32_mask(keys, bound)) << (16 * i);
    }
    return mask;
  }

  static uint64_t reach_mask(const uint64_t* x, uint64_t probe) {
    const __m512i magnitude = _mm512_set1_epi64(0x7fffffffffffffff);
    const __m512i bound = _mm512_set1_epi64(static_cast<int64_t>(probe));
    uint64_t mask = 0;
    for (int i = 0; i < 8; ++i) {
      const __m512i keys = _mm512_and_si512(load(x + 8 * i), magnitude);
      mask |= static_cast<uint64_t>(_mm512_cmpge_epu64_mask(keys, bound)) << (8 * i);
    }
    return mask;
  }

  static uint64_t pick_bits(uint64_t mask, uint64_t which) { return _pext_u64(mask, which); }

  static int64_t list(uint64_t mask, int64_t base, uint16_t* out) {
    alignas(64) static constexpr uint8_t kIota[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const __m512i first = _mm512_set1_epi16(static_cast<int16_t>(base));
    const __m512i offsets = _mm512_maskz_compress_epi8(mask, load(kIota));
    const auto entries = [&](__m256i half) { return _mm512_add_epi16(_mm512_cvtepu8_epi16(half), first); };
    const int64_t count = __builtin_popcountll(mask);
    _mm512_storeu_si512(out, entries(_mm512_castsi512_si256(offsets)));
    if (count > 32) _mm512_storeu_si512(out + 32, entries(_mm512_extracti64x4_epi64(offsets, 1)));
    return count;
  }

  static void drain_line(char* to, char* from) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load(from));
    _mm512_storeu_si512(from, _mm512_setzero_si512());
  }

  static void fence() { _mm_sfence(); }
};

}  // namespace

const Isa kAvx512Isa = IsaImpl<Avx512>::table("avx512");

}  // namespace zen

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // __x86_64__
