// partition() and hash_bitmap_encode() of about 2^32 elements, whose indices exceed 32 bits. Almost none is touched: the
// rest are pages that were never written, which take no memory.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "xla_ffi/cpu/hash_bitmap_encode.h"
#include "xla_ffi/cpu/partition.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

constexpr uint32_t kSeed = 11;
constexpr int64_t kElements = (int64_t{1} << 32) + 6, kHalf = int64_t{1} << 31;
constexpr int64_t kTouched[] = {0, kHalf - 1, kHalf, kHalf + 1, 2 * kHalf - 3, 2 * kHalf - 1, 2 * kHalf, kElements - 1};

void test_partition(const uint16_t* x, int64_t n, const Context& context) {
  constexpr int64_t kRoom = 8;
  std::vector<std::vector<int32_t>> positions(n);
  std::vector<std::vector<uint16_t>> values(n);
  for (const int64_t unit : kTouched) {
    const auto servers = static_cast<uint32_t>(n), tile = static_cast<uint32_t>(unit / n);
    const uint32_t offset = static_cast<uint32_t>(unit % n);
    const uint32_t server = server_in_tile(offset, tile_rotation(tile, servers, kSeed), servers);
    positions[server].push_back(static_cast<int32_t>(tile));
    values[server].push_back(x[unit]);
  }
  std::vector<int32_t> found(n * kRoom), counts(n);
  std::vector<uint16_t> taken(n * kRoom);
  partition({1, kElements, 1, n, kRoom}, x, kSeed, found.data(), taken.data(), counts.data(), context);
  for (int64_t server = 0; server < n; ++server) {
    ZEN_CHECK(counts[server] == static_cast<int64_t>(positions[server].size()));
    ZEN_CHECK(std::equal(positions[server].begin(), positions[server].end(), found.begin() + server * kRoom));
    ZEN_CHECK(std::equal(values[server].begin(), values[server].end(), taken.begin() + server * kRoom));
  }
}

// As many units of two elements as an int32 can count.
void test_encode(const uint16_t* x, std::vector<uint32_t>& words, const Context& context) {
  constexpr int64_t kUnits = kHalf - 1, kWidth = 2, kRoom = 8;
  std::vector<int64_t> units;
  for (const int64_t element : kTouched) {
    const int64_t unit = element / kWidth;
    if (unit < kUnits && (units.empty() || units.back() != unit)) units.push_back(unit);
  }
  std::vector<uint16_t> taken(kRoom * kWidth);
  int32_t count = -1;
  hash_bitmap_encode({1, kUnits, kWidth, bitmap_words(kUnits), kRoom}, x, words.data(), taken.data(), &count, context);
  ZEN_CHECK(count == static_cast<int64_t>(units.size()));
  ZEN_CHECK(std::count(words.begin(), words.end(), 0u) == static_cast<int64_t>(words.size() - units.size()));
  for (size_t i = 0; i < units.size(); ++i) {
    ZEN_CHECK(words[units[i] / kBitsPerWord] >> (units[i] % kBitsPerWord) & 1);
    ZEN_CHECK(std::equal(x + units[i] * kWidth, x + (units[i] + 1) * kWidth, taken.begin() + i * kWidth));
  }
}

}  // namespace
}  // namespace zen

int main() {
  void* const mapped = mmap(nullptr, zen::kElements * sizeof(uint16_t), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::printf("not tested: this system does not map %lld bytes\n", static_cast<long long>(zen::kElements * 2));
    return 77;
  }
  auto* const x = static_cast<uint16_t*>(mapped);
  uint16_t value = 0;
  for (const int64_t element : zen::kTouched) x[element] = ++value;
  zen::Threads pool(1);
  std::vector<uint32_t> words(zen::bitmap_words(zen::kHalf - 1));
  for (const zen::Isa* isa : zen::available_isas()) {
    const zen::PoolParallel<zen::Threads> parallel(pool, 2);
    const zen::Context context = {*isa, parallel, 1 << 20};
    zen::Checks::testing = isa->name;
    for (const int64_t n : {3, 64}) zen::test_partition(x, n, context);
    zen::test_encode(x, words, context);
  }
  munmap(mapped, zen::kElements * sizeof(uint16_t));
  return zen::test_result();
}
