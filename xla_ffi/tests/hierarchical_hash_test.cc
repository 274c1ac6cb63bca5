// hierarchical_hash() against a second implementation of Algorithm 1, and against what it promises.
#include "xla_ffi/cpu/hierarchical_hash.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

constexpr uint32_t kSeed = 42;

struct Tables {
  std::vector<uint32_t> memory;
  std::vector<int32_t> counts;
  int32_t overflow = 0;
};

Tables algorithm1(const HierarchicalHashProblem& p, const uint32_t* indices) {
  const int64_t room = p.r1 + p.r2;
  Tables tables = {std::vector<uint32_t>(p.n * room, kEmptySlot), std::vector<int32_t>(p.n), 0};
  std::vector<int64_t> serial(p.n);
  for (int64_t i = 0; i < p.indices; ++i) {
    if (indices[i] == kEmptySlot) continue;
    const int64_t server = hash_family(indices[i], 0, static_cast<uint32_t>(p.n), kSeed);
    ++tables.counts[server];
    bool placed = false;
    for (uint32_t attempt = 1; attempt <= p.k && p.r1 > 0 && !placed; ++attempt) {
      const int64_t slot = server * room + hash_family(indices[i], attempt, static_cast<uint32_t>(p.r1), kSeed);
      if (tables.memory[slot] == kEmptySlot) {
        tables.memory[slot] = indices[i];
        placed = true;
      }
    }
    if (placed) continue;
    if (serial[server] < p.r2) {
      tables.memory[server * room + p.r1 + serial[server]++] = indices[i];
    } else {
      ++tables.overflow;
    }
  }
  return tables;
}

void test(const HierarchicalHashProblem& p) {
  std::mt19937_64 random(p.indices);
  std::vector<uint32_t> indices(p.batch * p.indices);
  for (int64_t i = 0; i < static_cast<int64_t>(indices.size()); ++i) {
    indices[i] = random() % 10 == 0 ? kEmptySlot : static_cast<uint32_t>(i % p.indices * 7);
  }
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", indices " + std::to_string(p.indices) + ", n " + std::to_string(p.n) + ", r1 " +
                      std::to_string(p.r1) + ", r2 " + std::to_string(p.r2) + ", k " + std::to_string(p.k);
    const int64_t room = p.n * (p.r1 + p.r2);
    std::vector<uint32_t> memory(p.batch * room);
    std::vector<int32_t> counts(p.batch * p.n), overflow(p.batch);
    hierarchical_hash(p, indices.data(), kSeed, memory.data(), counts.data(), overflow.data(), context);
    for (int64_t b = 0; b < p.batch; ++b) {
      const Tables expected = algorithm1(p, indices.data() + b * p.indices);
      ZEN_CHECK(std::equal(expected.memory.begin(), expected.memory.end(), memory.begin() + b * room));
      ZEN_CHECK(std::equal(expected.counts.begin(), expected.counts.end(), counts.begin() + b * p.n));
      ZEN_CHECK(overflow[b] == expected.overflow);
      const auto begin = memory.begin() + b * room;
      const int64_t stored = room - std::count(begin, begin + room, kEmptySlot);
      int64_t sent = 0;
      for (int64_t server = 0; server < p.n; ++server) sent += counts[b * p.n + server];
      ZEN_CHECK(stored + overflow[b] == sent);
    }
  });
}

}  // namespace
}  // namespace zen

int main() {
  for (int64_t indices : {0, 1, 1000}) {
    for (int64_t n : {1, 3, 8}) {
      for (int64_t r1 : {0, 1, 2000}) {
        for (int64_t r2 : {0, 10, 1000}) {
          for (int64_t k : {0, 1, 3}) zen::test({2, indices, n, r1, r2, k});
        }
      }
    }
  }
  return zen::test_result();
}
