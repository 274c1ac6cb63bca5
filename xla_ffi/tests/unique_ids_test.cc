// unique_ids() against a sorted set.
#include "xla_ffi/cpu/unique_ids.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

void test(int64_t batch, int64_t size, int32_t least, int32_t unused) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::vector<int32_t> ids(batch * size);
  for (int32_t& id : ids) id = std::uniform_int_distribution<int32_t>(least, unused)(random);
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = name + ", size " + std::to_string(size) + ", ids up to " + std::to_string(unused);
    std::vector<int32_t> unique(ids.size(), -7), slots(ids.size(), -7), count(batch, -7);
    unique_ids({batch, size}, ids.data(), unused, unique.data(), slots.data(), count.data(), context);
    for (int64_t b = 0; b < batch; ++b) {
      const auto begin = ids.begin() + b * size;
      const std::set<int32_t> distinct(begin, begin + size);
      std::vector<int32_t> expected(distinct.begin(), distinct.end());
      expected.resize(size, unused);
      ZEN_CHECK(count[b] == static_cast<int32_t>(distinct.size() - distinct.count(unused)));
      ZEN_CHECK(std::equal(expected.begin(), expected.end(), unique.begin() + b * size));
      for (int64_t i = 0; i < size; ++i) {
        const int32_t slot = slots[b * size + i];
        ZEN_CHECK(slot >= 0 && slot < static_cast<int32_t>(distinct.size()) && expected[slot] == begin[i]);
      }
    }
  });
}

void test_all() {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (int64_t size : {0, 1, 2, 300, 4099}) {
    for (int32_t unused : {0, 5, 255, 256, 70'000, kMost}) test(3, size, 0, unused);
  }
  test(2, 1000, -kMost, kMost);
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_all();
  return zen::test_result();
}
