// hash_bitmap_encode() and hash_bitmap_decode() against their definitions, unit by unit.
#include <algorithm>
#include <string>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/cpu/hash_bitmap_decode.h"
#include "xla_ffi/cpu/hash_bitmap_encode.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"
#include "xla_ffi/tests/inputs.h"

namespace zen {
namespace {

constexpr uint32_t kSeed = 0x9747b28cu;

bool bit(const uint32_t* words, int64_t t) { return words[t / kBitsPerWord] >> (t % kBitsPerWord) & 1; }

template <typename Bits>
void check_message(const EncodeProblem& p, const Bits* shard, const uint32_t* words, const Bits* values,
                   int32_t count) {
  int64_t found = 0;
  for (int64_t t = 0; t < p.words * kBitsPerWord; ++t) {
    const Bits* const unit = shard + t * p.width;
    const bool set = t < p.size && unit_is_nonzero(unit, p.width);
    ZEN_CHECK(bit(words, t) == set);
    if (!set) continue;
    if (found < p.capacity) ZEN_CHECK(std::equal(unit, unit + p.width, values + found * p.width));
    ++found;
  }
  ZEN_CHECK(count == found);
}

template <typename Bits>
void test_encode(const EncodeProblem& p, double density) {
  const std::vector<Bits> shard = sparse_input<Bits>(p.batch * p.size * p.width, density, p.size);
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = "encode, " + name + ", size " + std::to_string(p.size) + ", width " + std::to_string(p.width) +
                      ", capacity " + std::to_string(p.capacity) + ", " + std::to_string(sizeof(Bits)) + " bytes";
    std::vector<uint32_t> words(p.batch * p.words, 0xdeadbeefu);
    std::vector<Bits> values(p.batch * p.capacity * p.width);
    std::vector<int32_t> count(p.batch, -1);
    hash_bitmap_encode(p, shard.data(), words.data(), values.data(), count.data(), context);
    for (int64_t b = 0; b < p.batch; ++b) {
      check_message(p, shard.data() + b * p.size * p.width, words.data() + b * p.words,
                    values.data() + b * p.capacity * p.width, count[b]);
    }
  });
}

template <typename Bits>
void decode_item(const DecodeProblem& p, const uint32_t* words, const Bits* values, Bits* out) {
  const uint32_t n = static_cast<uint32_t>(p.n);
  for (uint32_t server = 0; server < n; ++server) {
    int64_t rank = 0;
    for (int64_t t = 0; t < ceil_div(p.units, p.n); ++t) {
      if (!bit(words + server * p.words, t)) continue;
      const int64_t unit = t * n + offset_in_tile(server, tile_rotation(static_cast<uint32_t>(t), n, kSeed), n);
      if (unit < p.units && rank < p.capacity) {
        std::copy_n(values + (server * p.capacity + rank) * p.width, p.width, out + unit * p.width);
      }
      ++rank;
    }
  }
}

// Any words and values, padding bits included: what lies outside is ignored.
template <typename Bits>
void test_decode(const DecodeProblem& p, double density) {
  std::mt19937_64 random(p.units);
  std::vector<uint32_t> words(p.batch * p.n * p.words);
  for (uint32_t& word : words) {
    for (int i = 0; i < kBitsPerWord; ++i) {
      word |= static_cast<uint32_t>(std::generate_canonical<double, 32>(random) < density) << i;
    }
  }
  const std::vector<Bits> values = sparse_input<Bits>(p.batch * p.n * p.capacity * p.width, 1.0, p.n);
  std::vector<Bits> expected(p.batch * p.units * p.width);
  for (int64_t b = 0; b < p.batch; ++b) {
    decode_item(p, words.data() + b * p.n * p.words, values.data() + b * p.n * p.capacity * p.width,
                expected.data() + b * p.units * p.width);
  }
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = "decode, " + name + ", units " + std::to_string(p.units) + ", width " + std::to_string(p.width) +
                      ", n " + std::to_string(p.n) + ", capacity " + std::to_string(p.capacity) + ", " +
                      std::to_string(sizeof(Bits)) + " bytes, density " + std::to_string(density);
    std::vector<Bits> out(p.batch * p.units * p.width, static_cast<Bits>(~Bits{0}));
    hash_bitmap_decode(p, words.data(), values.data(), kSeed, out.data(), context);
    ZEN_CHECK(out == expected);
  });
}

template <typename Bits>
void test_shapes() {
  for (int64_t size : {0, 1, 64, 257}) {
    const int64_t batch = size < 100 ? 3 : 1;
    for (int64_t width : {0, 1, 3, 32, 100}) {
      for (double density : kDensities) {
        for (int64_t capacity : {int64_t{1}, size + 1}) {
          test_encode<Bits>({batch, size, width, bitmap_words(size), capacity}, density);
          for (int64_t n : {1, 3, 8, 70}) {
            test_decode<Bits>({batch, size, width, n, bitmap_words(ceil_div(size, n)), capacity}, density);
          }
        }
      }
    }
  }
  // Blocks of every size down to one tile, and outputs large enough to be streamed.
  test_encode<Bits>({1, 40009, 1, bitmap_words(40009), 40009}, 0.05);
  test_decode<Bits>({1, 300007, 1, 3, bitmap_words(100003), 50000}, 0.05);
  test_decode<Bits>({1, 300007, 1, 65535, bitmap_words(5), 5}, 0.05);
  test_decode<Bits>({1, 5003, 100, 30, bitmap_words(167), 167}, 0.5);
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_shapes<uint16_t>();
  zen::test_shapes<uint32_t>();
  zen::test_shapes<uint64_t>();
  return zen::test_result();
}
