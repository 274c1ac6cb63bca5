#include "xla_ffi/cpu/partition_coo.h"

#include <algorithm>

#include "xla_ffi/cpu/buckets.h"
#include "xla_ffi/cpu/chunk.h"
#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

template <typename Bits>
void deal_range(const PartitionProblem& p, const int32_t* indices, const Bits* values, Range range, uint32_t seed,
                const Isa& isa, const Buckets<Bits>& out, RangeBuckets<Bits>& found) {
  const uint32_t n = static_cast<uint32_t>(p.n);
  Cursor* const cursors = found.cursors.data();
  ChunkLists lists;
  for (int64_t begin = range.begin; begin < range.end;) {
    const uint32_t first = static_cast<uint32_t>(indices[begin]);
    const int64_t most = std::min(kChunkUnits, range.end - begin);
    int64_t count = 0;
    for (; count < most; ++count) {
      const uint32_t distance = static_cast<uint32_t>(indices[begin + count]) - first;
      if (distance > kMostListed) break;
      lists.units[count] = static_cast<uint16_t>(distance);
    }
    isa.route(lists.units, count, {first / n, first % n}, n, seed, lists.tiles, lists.servers);
    for (int64_t i = 0; i < count; ++i) {
      put(out, found, cursors, lists.servers[i], lists.tiles[i], values + begin + i, 1);
    }
    begin += count;
  }
}

}  // namespace

template <typename Bits>
void partition_coo(const PartitionProblem& p, const int32_t* indices, const Bits* values, const int32_t* count,
                   uint32_t seed, int32_t* positions, Bits* bucket_values, int32_t* counts, const Context& context) {
  const int64_t ranges = ranges_per_item(p.batch, p.units * (sizeof(int32_t) + sizeof(Bits)), 1, context);
  const auto fill = [&](int64_t b, int64_t r, const Buckets<Bits>& out, RangeBuckets<Bits>& found) {
    const Range range = range_of(r, ranges, std::clamp<int64_t>(count[b], 0, p.units), 1);
    deal_range(p, indices + b * p.units, values + b * p.units, range, seed, context.isa, out, found);
  };
  fill_buckets(p, Buckets<Bits>{positions, bucket_values, counts}, ranges, context, fill);
}

#define ZEN_INSTANTIATE(Bits)                                                                                     \
  template void partition_coo(const PartitionProblem&, const int32_t*, const Bits*, const int32_t*, uint32_t,     \
                              int32_t*, Bits*, int32_t*, const Context&)

ZEN_INSTANTIATE(uint16_t);
ZEN_INSTANTIATE(uint32_t);
ZEN_INSTANTIATE(uint64_t);

}  // namespace zen
