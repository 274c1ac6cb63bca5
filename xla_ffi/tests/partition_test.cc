// partition() and partition_coo() against the definition, unit by unit.
#include "xla_ffi/cpu/partition.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/cpu/partition_coo.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"
#include "xla_ffi/tests/inputs.h"

namespace zen {
namespace {

constexpr uint32_t kSeed = 0x9747b28cu;

// A bucket of one batch item, of any length.
template <typename Bits>
struct Bucket {
  std::vector<int32_t> positions;
  std::vector<Bits> values;
};

template <typename Bits>
std::vector<Bucket<Bits>> expected_buckets(const PartitionProblem& p, const Bits* x) {
  const uint32_t n = static_cast<uint32_t>(p.n);
  std::vector<Bucket<Bits>> buckets(p.n);
  for (int64_t u = 0; u < p.units; ++u) {
    const Bits* const unit = x + u * p.width;
    if (!unit_is_nonzero(unit, p.width)) continue;
    const uint32_t tile = static_cast<uint32_t>(u / p.n), offset = static_cast<uint32_t>(u % p.n);
    Bucket<Bits>& bucket = buckets[server_in_tile(offset, tile_rotation(tile, n, kSeed), n)];
    bucket.positions.push_back(static_cast<int32_t>(tile));
    bucket.values.insert(bucket.values.end(), unit, unit + p.width);
  }
  return buckets;
}

// run(context, positions, values, counts) must make the buckets of x.
template <typename Bits, typename Run>
void check_buckets(const PartitionProblem& p, const std::vector<Bits>& x, const std::string& what, Run&& run) {
  std::vector<Bucket<Bits>> expected;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (auto& bucket : expected_buckets(p, x.data() + b * p.units * p.width)) expected.push_back(std::move(bucket));
  }
  for_each_context([&](const Context& context, const std::string& name) {
    Checks::testing = what + ", " + name + ", units " + std::to_string(p.units) + ", width " + std::to_string(p.width) +
                      ", n " + std::to_string(p.n) + ", capacity " + std::to_string(p.capacity) + ", " +
                      std::to_string(sizeof(Bits)) + " bytes";
    const int64_t buckets = p.batch * p.n;
    std::vector<int32_t> positions(buckets * p.capacity), counts(buckets, -1);
    std::vector<Bits> values(buckets * p.capacity * p.width);
    run(context, positions.data(), values.data(), counts.data());
    for (int64_t i = 0; i < buckets; ++i) {
      const int64_t total = expected[i].positions.size(), kept = std::min(total, p.capacity);
      ZEN_CHECK(counts[i] == total);
      const auto first = expected[i].positions.begin();
      ZEN_CHECK(std::equal(first, first + kept, positions.begin() + i * p.capacity));
      const auto value = expected[i].values.begin();
      ZEN_CHECK(std::equal(value, value + kept * p.width, values.begin() + i * p.capacity * p.width));
    }
  });
}

// Lists with twice the room they need, and garbage beyond their end.
template <typename Bits>
void check_lists(const PartitionProblem& p, const std::vector<Bits>& x, const std::string& what) {
  const int64_t room = 2 * p.units;
  std::vector<int32_t> indices(p.batch * room, -7), count(p.batch);
  std::vector<Bits> values(p.batch * room, 1);
  for (int64_t i = 0; i < p.batch * p.units; ++i) {
    const int64_t b = i / p.units;
    if (!is_nonzero(x[i])) continue;
    indices[b * room + count[b]] = static_cast<int32_t>(i % p.units);
    values[b * room + count[b]++] = x[i];
  }
  PartitionProblem lists = p;
  lists.units = room;
  const auto run = [&](const Context& context, int32_t* positions, Bits* bucket_values, int32_t* counts) {
    partition_coo(lists, indices.data(), values.data(), count.data(), kSeed, positions, bucket_values, counts, context);
  };
  check_buckets(p, x, what + ", lists", run);
}

template <typename Bits>
void check(const PartitionProblem& p, const std::vector<Bits>& x, const std::string& what) {
  const auto run = [&](const Context& context, int32_t* positions, Bits* values, int32_t* counts) {
    partition(p, x.data(), kSeed, positions, values, counts, context);
  };
  check_buckets(p, x, what, run);
  if (p.width == 1 && p.units > 0) check_lists(p, x, what);
}

template <typename Bits>
void test(const PartitionProblem& p, double density) {
  check(p, sparse_input<Bits>(p.batch * p.units * p.width, density, p.units + p.n),
        "density " + std::to_string(density));
}

template <typename Bits>
void test_shapes() {
  for (int64_t units : {0, 1, 64, 509}) {
    for (int64_t width : {0, 1, 3, 32, 100}) {
      for (int64_t n : {1, 3, 8, 70}) {
        for (double density : kDensities) {
          for (int64_t capacity : {int64_t{1}, std::max<int64_t>(1, units / n / 2), units / n + 1}) {
            test<Bits>({units < 100 ? 3 : 1, units, width, n, capacity}, density);
          }
        }
      }
    }
  }
  test<Bits>({1, 20011, 1, 3, 6671}, 0.05);
  test<Bits>({1, 70001, 1, 65535, 2}, 0.05);
  test<Bits>({1, 300007, 1, 5, 60002}, 0.0001);
}

// All non-zeros are in one part of the input: they do not fit the ranges' slots, and spills join in order.
void test_skew() {
  constexpr int64_t kUnits = 4096;
  for (int64_t begin : {0, 1500, 3000}) {
    std::vector<uint32_t> x(kUnits);
    for (int64_t u = begin; u < begin + 1000; ++u) x[u] = static_cast<uint32_t>(u);
    for (int64_t capacity : {100, 499, 500, 600, 2000}) {
      check<uint32_t>({1, kUnits, 1, 2, capacity}, x, "skew at " + std::to_string(begin));
    }
  }
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_shapes<uint16_t>();
  zen::test_shapes<uint32_t>();
  zen::test_shapes<uint64_t>();
  zen::test_skew();
  return zen::test_result();
}
