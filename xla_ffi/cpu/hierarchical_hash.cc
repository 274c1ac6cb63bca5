#include "xla_ffi/cpu/hierarchical_hash.h"

#include <algorithm>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

// Places the indices of partitions range.begin .. range.end - 1, in order, and returns how many found no room.
int64_t place_partitions(const HierarchicalHashProblem& p, const uint32_t* indices, uint32_t seed, Range range,
                         uint32_t* memory, int32_t* counts) {
  const uint32_t n = static_cast<uint32_t>(p.n), r1 = static_cast<uint32_t>(p.r1);
  const uint32_t tries = p.r1 > 0 ? static_cast<uint32_t>(p.k) : 0;
  std::fill(memory + range.begin * (p.r1 + p.r2), memory + range.end * (p.r1 + p.r2), kEmptySlot);
  std::fill(counts + range.begin, counts + range.end, 0);
  std::vector<int64_t> serial(range.end - range.begin);
  int64_t lost = 0;
  for (int64_t i = 0; i < p.indices; ++i) {
    const uint32_t index = indices[i];
    if (index == kEmptySlot) continue;
    const int64_t partition = hash_family(index, 0, n, seed);
    if (partition < range.begin || partition >= range.end) continue;
    ++counts[partition];
    uint32_t* const slots = memory + partition * (p.r1 + p.r2);
    uint32_t attempt = 1;
    for (; attempt <= tries; ++attempt) {
      uint32_t& slot = slots[hash_family(index, attempt, r1, seed)];
      if (slot != kEmptySlot) continue;
      slot = index;
      break;
    }
    if (attempt <= tries) continue;
    int64_t& used = serial[partition - range.begin];
    if (used < p.r2) {
      slots[p.r1 + used++] = index;
    } else {
      ++lost;
    }
  }
  return lost;
}

}  // namespace

void hierarchical_hash(const HierarchicalHashProblem& p, const uint32_t* indices, uint32_t seed, uint32_t* memory,
                       int32_t* counts, int32_t* overflow, const Context& context) {
  const int64_t ranges =
      std::min(p.n, ranges_per_item(p.batch, p.indices * static_cast<int64_t>(sizeof(uint32_t)), 1, context));
  const std::vector<int64_t> lost = context.parallel.results(p.batch * ranges, [&](int64_t task) {
    const int64_t b = task / ranges;
    return place_partitions(p, indices + b * p.indices, seed, range_of(task % ranges, ranges, p.n, 1),
                            memory + b * p.n * (p.r1 + p.r2), counts + b * p.n);
  });
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t total = 0;
    for (int64_t r = 0; r < ranges; ++r) total += lost[b * ranges + r];
    overflow[b] = static_cast<int32_t>(total);
  }
}

}  // namespace zen
