// place_own() against the tile rotation: entries whose bit is clear are written, with the bits that aggregate() gives
// them alone, while the caller's thread flushes subnormals.
#include "xla_ffi/cpu/place_own.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/cpu/aggregate.h"
#include "xla_ffi/cpu/subnormals.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"
#include "xla_ffi/tests/inputs.h"

namespace zen {
namespace {

constexpr uint32_t kSeed = 3;

template <typename T, typename Bits>
void test(const DecodeProblem& p, int64_t divisor) {
  std::mt19937_64 random(p.units + p.n);
  const int64_t buckets = p.batch * p.n, size = ceil_div(p.units, p.n);
  std::vector<uint32_t> words(buckets * p.words);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  std::vector<int32_t> positions(buckets * p.capacity, -1), counts(buckets);
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    // Every second position or so, and some that no server has.
    for (int64_t entry = 0, position = 0; entry < p.capacity; ++entry) {
      positions[bucket * p.capacity + entry] = static_cast<int32_t>(position += 1 + random() % 3);
    }
    counts[bucket] = static_cast<int32_t>(random() % (p.capacity + 3));
  }
  const std::vector<Bits> bits = sparse_input<Bits>(buckets * p.capacity * p.width, 1.0, 7);
  const T* const values = reinterpret_cast<const T*>(bits.data());
  std::vector<T> before(p.batch * p.units * p.width);
  std::memset(static_cast<void*>(before.data()), 0x3c, before.size() * sizeof(T));
  std::vector<T> expected(before);
  const int64_t width = p.width;
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", units " + std::to_string(p.units) + ", n " + std::to_string(p.n) + ", width " +
                      std::to_string(width) + ", " + std::to_string(sizeof(T)) + " bytes";
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
      for (int64_t entry = 0; entry < std::min<int64_t>(counts[bucket], p.capacity); ++entry) {
        const int64_t at = bucket * p.capacity + entry;
        const auto tile = static_cast<uint32_t>(positions[at]);
        if (tile >= size || words[bucket * p.words + tile / 32] >> (tile % 32) & 1) continue;
        const auto n = static_cast<uint32_t>(p.n), server = static_cast<uint32_t>(bucket % p.n);
        const int64_t unit = int64_t{tile} * n + offset_in_tile(server, tile_rotation(tile, n, kSeed), n);
        if (unit >= p.units) continue;
        const int32_t first = 0, one = 1;
        aggregate({1, 1, 1, width, 1}, &first, values + at * width, &one, divisor,
                  expected.data() + (bucket / p.n * p.units + unit) * width, context);
      }
    }
    std::vector<T> x(before);
    {
      const FlushSubnormals flush;
      place_own(p, words.data(), positions.data(), values, counts.data(), divisor, kSeed, x.data(), context);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const bool nan = widen(x[i]) != widen(x[i]) && widen(expected[i]) != widen(expected[i]);
      ZEN_CHECK(nan || std::memcmp(&x[i], &expected[i], sizeof(T)) == 0);
    }
  });
}

template <typename T, typename Bits>
void test_shapes() {
  for (int64_t units : {1, 64, 1009}) {
    for (int64_t width : {1, 3}) {
      for (int64_t n : {1, 2, 5}) {
        const int64_t words = bitmap_words(ceil_div(units, n));
        for (int64_t divisor : {1, 7}) test<T, Bits>({2, units, width, n, words, 20}, divisor);
      }
    }
  }
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_shapes<float, uint32_t>();
  zen::test_shapes<double, uint64_t>();
  zen::test_shapes<zen::Float16, uint16_t>();
  zen::test_shapes<zen::BFloat16, uint16_t>();
  return zen::test_result();
}
