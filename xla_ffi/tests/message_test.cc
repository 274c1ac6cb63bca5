// pack() against messages written word by word, and unpack() and unpack_joined() on these.
#include "xla_ffi/cpu/message.h"

#include <algorithm>
#include <string>
#include <vector>

#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

constexpr int32_t kBeyond = 77;

template <typename T>
std::vector<T> counting(int64_t size, int first) {
  std::vector<T> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = static_cast<T>(first + i);
  return values;
}

template <typename T>
const uint32_t* words_of(const std::vector<T>& values) {
  return reinterpret_cast<const uint32_t*>(values.data());
}

// unpack_joined() of messages, entry by entry.
void test_joined(const MessageProblem& p, const std::vector<uint32_t>& messages, const std::vector<int32_t>& counts,
                 const Context& context) {
  // What lies after the entries belongs to none of them, and stays unchanged.
  std::vector<int32_t> positions(p.batch * p.room, -1), expected_positions(positions);
  std::vector<char> units(p.batch * p.room * p.unit_bytes, -1), expected_units(units);
  for (int64_t item = 0; item < p.batch; ++item) {
    int64_t entry = item * p.room;
    for (int64_t bucket = item * p.n; bucket < (item + 1) * p.n; ++bucket) {
      const uint32_t* const from = messages.data() + bucket * p.words() + p.head_words;
      const int64_t filled = std::min<int64_t>(counts[bucket], p.capacity);
      std::copy_n(from, filled, expected_positions.begin() + entry);
      std::copy_n(reinterpret_cast<const char*>(from + p.capacity), filled * p.unit_bytes,
                  expected_units.begin() + entry * p.unit_bytes);
      entry += filled;
    }
  }
  unpack_joined(p, messages.data(), counts.data(), positions.data(), units.data(), context);
  ZEN_CHECK(positions == expected_positions);
  ZEN_CHECK(units == expected_units);
}

void test(const MessageProblem& p) {
  const int64_t buckets = p.batch * p.n;
  const auto head = counting<int32_t>(buckets * p.head_words, 7);
  const int64_t entries = (p.joined ? p.batch : buckets) * p.room;
  const auto positions = counting<int32_t>(p.has_positions ? entries : 0, 1000);
  const auto units = counting<char>(entries * p.unit_bytes, 1);
  std::vector<int32_t> counts(buckets);
  std::vector<int64_t> first(buckets);
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    counts[bucket] = static_cast<int32_t>(bucket * 5 % (p.joined ? p.room / p.n : p.room + 2));
    const bool follows = p.joined && bucket % p.n > 0;
    first[bucket] = follows ? first[bucket - 1] + counts[bucket - 1] : bucket / (p.joined ? p.n : 1) * p.room;
  }

  std::vector<uint32_t> expected(buckets * p.words(), 0);
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    uint32_t* to = expected.data() + bucket * p.words();
    const int64_t filled = std::min<int64_t>(counts[bucket], p.capacity);
    to = std::copy_n(head.data() + bucket * p.head_words, p.head_words, to);
    if (p.has_positions) {
      std::copy_n(words_of(positions) + first[bucket], filled, to);
      std::fill(to + filled, to + p.capacity, kBeyond);
      to += p.capacity;
    }
    const char* const unit = units.data() + first[bucket] * p.unit_bytes;
    std::copy_n(unit, filled * p.unit_bytes, reinterpret_cast<char*>(to));
  }

  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", capacity " + std::to_string(p.capacity) + " of " + std::to_string(p.room) +
                      ", units of " + std::to_string(p.unit_bytes) + " bytes";
    std::vector<std::vector<uint32_t>> messages(p.n, std::vector<uint32_t>(p.batch * p.words(), 0xDEADBEEF));
    std::vector<uint32_t*> to;
    for (auto& message : messages) to.push_back(message.data());
    pack(p, {head.data(), positions.data(), units.data()}, counts.data(), kBeyond, to, context);
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
      const auto begin = expected.begin() + bucket * p.words();
      ZEN_CHECK(std::equal(begin, begin + p.words(), to[bucket % p.n] + bucket / p.n * p.words()));
    }

    if (p.joined) return test_joined(p, expected, counts, context);
    std::vector<int32_t> head_again(head.size());
    std::vector<int32_t> positions_again(p.has_positions ? buckets * p.capacity : 0);
    std::vector<char> units_again(buckets * p.capacity * p.unit_bytes);
    unpack(p, expected.data(), {head_again.data(), positions_again.data(), units_again.data()}, context);
    ZEN_CHECK(head_again == head);
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
      const uint32_t* from = expected.data() + bucket * p.words() + p.head_words;
      if (p.has_positions) {
        ZEN_CHECK(std::equal(from, from + p.capacity, words_of(positions_again) + bucket * p.capacity));
        from += p.capacity;
      }
      const int64_t bytes = p.capacity * p.unit_bytes;
      ZEN_CHECK(std::equal(units_again.data() + bucket * bytes, units_again.data() + (bucket + 1) * bytes,
                           reinterpret_cast<const char*>(from)));
    }
  });
}

void test_all() {
  for (int64_t unit_bytes : {0, 2, 4, 6, 8, 64}) {
    for (int64_t capacity : {1, 3, 50}) {
      test({2, 3, 1, true, false, 50, capacity, unit_bytes});
      test({1, 1, 0, false, false, 50, capacity, unit_bytes});
      test({3, 2, 5, false, false, 51, capacity, unit_bytes});
      test({2, 3, 1, true, true, 50, capacity, unit_bytes});
      test({3, 1, 2, true, true, 51, capacity, unit_bytes});
    }
  }
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_all();
  return zen::test_result();
}
