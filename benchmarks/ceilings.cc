// Reads and overwrites memory as fast as one core can: the bandwidth ceilings of benchmarks/ceilings.py.
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

extern "C" uint64_t read_all(const uint64_t* data, size_t words) {
  constexpr size_t kPrefetchWords = 512;
  uint64_t bits[32] = {};
  for (size_t i = 0; i + 32 <= words; i += 32) {
    for (size_t line = 0; line < 32; line += 8) __builtin_prefetch(data + i + line + kPrefetchWords, 0, 2);
    for (size_t j = 0; j < 32; ++j) bits[j] |= data[i + j];
  }
  uint64_t any = 0;
  for (uint64_t word : bits) any |= word;
  return any;
}

// Bypasses the caches where the machine can: no line is read only to be overwritten. `data` must be at a multiple of 16
// bytes.
extern "C" void write_all(uint64_t* data, size_t words, uint64_t value) {
#if defined(__SSE2__)
  const __m128i pair = _mm_set1_epi64x(static_cast<int64_t>(value));
  for (size_t i = 0; i + 2 <= words; i += 2) _mm_stream_si128(reinterpret_cast<__m128i*>(data + i), pair);
  _mm_sfence();
#else
  for (size_t i = 0; i < words; ++i) data[i] = value;
#endif
}
