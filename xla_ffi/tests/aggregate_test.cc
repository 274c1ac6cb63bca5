// aggregate(), aggregate_encode() and aggregate_for_others() against the definition: sums in worker order, bit for bit,
// while the caller's thread flushes subnormals.
#include "xla_ffi/cpu/aggregate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/aggregate_encode.h"
#include "xla_ffi/cpu/aggregate_for_others.h"
#include "xla_ffi/cpu/hash_bitmap_encode.h"
#include "xla_ffi/cpu/subnormals.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace {

// The largest allocation that was requested at a cache line, as the blocks of sums are.
std::atomic<size_t> largest_block = 0;

}  // namespace

void* operator new(size_t bytes, std::align_val_t alignment) {
  for (size_t seen = largest_block; seen < bytes && !largest_block.compare_exchange_weak(seen, bytes);) continue;
  const size_t line = static_cast<size_t>(alignment);
  if (void* const block = std::aligned_alloc(line, (bytes + line - 1) / line * line)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }

namespace zen {
namespace {

template <typename T>
T number(std::mt19937_64& random) {
  using Sum = Accumulator<T>;
  constexpr Sum kSpecial[] = {std::numeric_limits<Sum>::infinity(), std::numeric_limits<Sum>::denorm_min(), Sum(6e-8),
                              -std::numeric_limits<Sum>::denorm_min(), Sum(-6e-8)};
  T value;
  const uint64_t choice = random();
  round_to(choice % 20 < 5 ? kSpecial[choice % 20] : Sum(std::normal_distribution<double>()(random)), &value);
  return value;
}

template <typename T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(widen(a)) && std::isnan(widen(b)));
}

// Runs a kernel while this thread flushes subnormals, as it must still do afterwards.
template <typename Run>
void while_flushing(Run&& run) {
  const FlushSubnormals flush;
  const volatile float subnormal = 1e-40f;
  const bool flushed = subnormal == 0;
  run();
  ZEN_CHECK((subnormal == 0) == flushed);
}

template <typename T>
std::vector<T> expected_shard(const AggregateProblem& p, const int32_t* positions, const T* values,
                              const int32_t* counts, int64_t divisor) {
  using Sum = Accumulator<T>;
  std::vector<Sum> sums(p.size * p.width);
  for (int64_t worker = 0; worker < p.n; ++worker) {
    for (int64_t entry = 0; entry < std::min<int64_t>(counts[worker], p.capacity); ++entry) {
      const int64_t at = worker * p.capacity + entry;
      if (positions[at] < 0 || positions[at] >= p.size) continue;
      for (int64_t i = 0; i < p.width; ++i) sums[positions[at] * p.width + i] += widen(values[at * p.width + i]);
    }
  }
  std::vector<T> shard(sums.size());
  const Sum reciprocal = Sum{1} / static_cast<Sum>(divisor);
  for (size_t i = 0; i < sums.size(); ++i) {
    round_to(sums[i] * reciprocal, &shard[i]);
    if (widen(shard[i]) == 0) shard[i] = T{};
  }
  return shard;
}

// aggregate_encode() gives what hash_bitmap_encode() makes of the shard, with room for all units and for few.
template <typename T>
void test_encode(const AggregateProblem& p, const int32_t* positions, const T* values, const int32_t* counts,
                 int64_t divisor, const std::vector<T>& shard, const Context& context) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  for (const int64_t room : {p.size + 1, p.size / 3 + 1}) {
    const int64_t word_count = bitmap_words(p.size);
    std::vector<uint32_t> words(p.batch * word_count, 7), expected_words(words.size());
    std::vector<T> units(p.batch * room * p.width), expected_units(units.size());
    std::vector<int32_t> found(p.batch), expected(p.batch);
    const AggregateEncodeProblem problem = {p, room};
    while_flushing([&] {
      aggregate_encode(problem, positions, values, counts, divisor, words.data(), units.data(), found.data(), context);
    });
    const EncodeProblem encode = {p.batch, p.size, p.width, word_count, room};
    hash_bitmap_encode(encode, reinterpret_cast<const Bits*>(shard.data()), expected_words.data(),
                       reinterpret_cast<Bits*>(expected_units.data()), expected.data(), context);
    ZEN_CHECK(words == expected_words && found == expected);
    for (int64_t b = 0; b < p.batch; ++b) {
      const T* const first = units.data() + b * room * p.width;
      const int64_t held = std::min<int64_t>(found[b], room) * p.width;
      ZEN_CHECK(std::equal(first, first + held, expected_units.data() + b * room * p.width, same_bits<T>));
    }
  }
}

// aggregate_for_others() sends every worker what the shard holds of the units that another one sent.
template <typename T>
void test_for_others(const AggregateProblem& p, const int32_t* positions, const T* values, const int32_t* counts,
                     int64_t divisor, const std::vector<T>& shard, const Context& context) {
  const int64_t word_count = bitmap_words(p.size);
  for (const int64_t room : {p.size + 1, p.size / 3 + 1}) {
    std::vector<uint32_t> words(p.batch * p.n * word_count, 7);
    std::vector<T> units(p.batch * p.n * room * p.width);
    std::vector<int32_t> held(p.batch * p.n), nonzero(p.batch);
    while_flushing([&] {
      aggregate_for_others({p, room}, positions, values, counts, divisor, words.data(), units.data(), held.data(),
                           nonzero.data(), context);
    });
    for (int64_t b = 0; b < p.batch; ++b) {
      std::vector<int64_t> senders(p.size), sender(p.size);
      for (int64_t bucket = b * p.n; bucket < (b + 1) * p.n; ++bucket) {
        for (int64_t entry = 0; entry < std::min<int64_t>(counts[bucket], p.capacity); ++entry) {
          const int64_t unit = positions[bucket * p.capacity + entry];
          if (unit < 0 || unit >= p.size) continue;
          ++senders[unit];
          sender[unit] = bucket;
        }
      }
      const T* const item = shard.data() + b * p.size * p.width;
      int32_t expected_nonzero = 0;
      for (int64_t unit = 0; unit < p.size; ++unit) {
        expected_nonzero += std::any_of(item + unit * p.width, item + (unit + 1) * p.width,
                                        [](const T& x) { return widen(x) != 0; });
      }
      ZEN_CHECK(nonzero[b] == expected_nonzero);
      for (int64_t bucket = b * p.n; bucket < (b + 1) * p.n; ++bucket) {
        int32_t rank = 0;
        for (int64_t unit = 0; unit < word_count * kBitsPerWord; ++unit) {
          const bool lacks = unit < p.size && senders[unit] > (sender[unit] == bucket ? 1 : 0);
          const uint32_t word = words[bucket * word_count + unit / kBitsPerWord];
          ZEN_CHECK((word >> (unit % kBitsPerWord) & 1) == lacks);
          if (!lacks) continue;
          const T* const sum = item + unit * p.width;
          if (rank < room) {
            ZEN_CHECK(std::equal(sum, sum + p.width, units.data() + (bucket * room + rank) * p.width, same_bits<T>));
          }
          ++rank;
        }
        ZEN_CHECK(held[bucket] == rank);
      }
    }
  }
}

// Strictly ascending positions, some outside the shard on either side; counts below, at and above the capacity.
template <typename T>
void test(const AggregateProblem& p, int64_t divisor) {
  std::mt19937_64 random(p.size + p.n);
  const int64_t buckets = p.batch * p.n;
  std::vector<int32_t> positions(buckets * p.capacity), counts(buckets);
  std::vector<T> values(buckets * p.capacity * p.width);
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    int32_t position = -2;
    const int32_t stride = static_cast<int32_t>(2 * p.size / p.capacity + 1);
    for (int64_t entry = 0; entry < p.capacity; ++entry) {
      positions[bucket * p.capacity + entry] = position;
      position += 1 + static_cast<int32_t>(random() % stride);
    }
    counts[bucket] = static_cast<int32_t>(random() % (p.capacity + 3));
  }
  for (T& value : values) value = number<T>(random);
  std::vector<T> expected;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t bucket = b * p.n * p.capacity;
    const std::vector<T> item = expected_shard(p, positions.data() + bucket, values.data() + bucket * p.width,
                                               counts.data() + b * p.n, divisor);
    expected.insert(expected.end(), item.begin(), item.end());
  }
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", size " + std::to_string(p.size) + ", width " + std::to_string(p.width) + ", n " +
                      std::to_string(p.n) + ", capacity " + std::to_string(p.capacity) + ", " +
                      std::to_string(sizeof(T)) + " bytes, divisor " + std::to_string(divisor);
    std::vector<T> shard(p.batch * p.size * p.width);
    while_flushing(
        [&] { aggregate(p, positions.data(), values.data(), counts.data(), divisor, shard.data(), context); });
    ZEN_CHECK(std::equal(expected.begin(), expected.end(), shard.begin(), same_bits<T>));
    test_encode(p, positions.data(), values.data(), counts.data(), divisor, shard, context);
    if (p.size == 0 || p.n == 1) return;
    test_for_others(p, positions.data(), values.data(), counts.data(), divisor, shard, context);
  });
}

template <typename T>
void test_shapes() {
  for (int64_t size : {0, 1, 64, 1009}) {
    for (int64_t width : {0, 1, 3, 32}) {
      for (int64_t n : {1, 2, 5}) {
        for (int64_t capacity : {1, 40, 300}) {
          for (int64_t divisor : {1, 7}) test<T>({size < 100 ? 3 : 1, n, capacity, width, size}, divisor);
        }
      }
    }
  }
  test<T>({1, 3, 20000, 1, 300007}, 3);
}

// A caller that breaks the promise of ascending positions gets an arbitrary shard, and nothing is written outside it.
void test_unordered_positions() {
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", unordered positions";
    std::mt19937_64 random(1);
    const AggregateProblem p = {1, 2, 5000, 1, 20000};
    std::vector<int32_t> positions(2 * p.capacity), counts(2, 5000);
    for (int32_t& position : positions) position = static_cast<int32_t>(random());
    const int64_t around = 1000;
    std::vector<float> values(positions.size(), 1.0f), shard(p.size + 2 * around, -1.0f);
    aggregate(p, positions.data(), values.data(), counts.data(), 1, shard.data() + around, context);
    const auto is_untouched = [](float x) { return x == -1; };
    ZEN_CHECK(std::all_of(shard.begin(), shard.begin() + around, is_untouched));
    ZEN_CHECK(std::none_of(shard.begin() + around, shard.end() - around, is_untouched));
    ZEN_CHECK(std::all_of(shard.end() - around, shard.end(), is_untouched));
  });
}

// A few units, however wide, are summed in a block of their size.
void test_memory_of_few_wide_units() {
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", few wide units";
    const AggregateEncodeProblem p = {{1, 2, 1, 100003, 3}, 3};
    const std::vector<int32_t> positions = {0, 2}, counts = {1, 1};
    const std::vector<float> values(2 * p.width, 1.0f);
    std::vector<float> units(p.room * p.width);
    uint32_t words;
    int32_t count;
    largest_block = 0;
    aggregate_encode(p, positions.data(), values.data(), counts.data(), 1, &words, units.data(), &count, context);
    ZEN_CHECK(words == 5 && count == 2);
    ZEN_CHECK(largest_block <= units.size() * sizeof(float));
  });
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_shapes<float>();
  zen::test_shapes<double>();
  zen::test_shapes<zen::Float16>();
  zen::test_shapes<zen::BFloat16>();
  zen::test_unordered_positions();
  zen::test_memory_of_few_wide_units();
  return zen::test_result();
}
