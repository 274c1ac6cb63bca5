#include "xla_ffi/cpu/partition.h"

#include <algorithm>

#include "xla_ffi/cpu/buckets.h"
#include "xla_ffi/cpu/chunk.h"
#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

// Puts a chunk's listed units into their buckets. Meanwhile it prefetches the next chunk, half a cache line per unit:
// memory would be idle otherwise.
template <bool kOneElement, typename Bits>
void deal_out(const PartitionProblem& p, const Buckets<Bits>& out, const Bits* chunk, const ChunkLists& lists,
              int64_t count, RangeBuckets<Bits>& found) {
  const int64_t width = kOneElement ? 1 : p.width;
  const char* const ahead = reinterpret_cast<const char*>(chunk) + kChunkBytes + kScanAheadBytes;
  Cursor* const cursors = found.cursors.data();
  for (int64_t i = 0; i < count; ++i) {
    if (kOneElement) __builtin_prefetch(ahead + i * 32 % kChunkBytes, 0, 2);
    put(out, found, cursors, lists.servers[i], lists.tiles[i], chunk + lists.units[i] * width, width);
  }
}

template <typename Bits>
void partition_range(const PartitionProblem& p, const Bits* x, Range range, uint32_t seed, const Isa& isa,
                     const Buckets<Bits>& out, RangeBuckets<Bits>& found) {
  const auto scan = isa.scan<Bits>();
  const auto deal = p.width == 1 ? deal_out<true, Bits> : deal_out<false, Bits>;
  const uint32_t n = static_cast<uint32_t>(p.n);
  const int64_t step = chunk_units(p.width * sizeof(Bits));
  const ChunkOrigin stride = {static_cast<uint32_t>(step / n), static_cast<uint32_t>(step % n)};
  ChunkOrigin origin = {static_cast<uint32_t>(range.begin / n), static_cast<uint32_t>(range.begin % n)};
  ChunkLists lists;
  for (int64_t unit = range.begin; unit < range.end; unit += step) {
    const Bits* const chunk = x + unit * p.width;
    const int64_t count = scan(chunk, p.width, std::min(step, range.end - unit), lists.masks, lists.units);
    isa.route(lists.units, count, origin, n, seed, lists.tiles, lists.servers);
    deal(p, out, chunk, lists, count, found);
    const uint32_t first = origin.first + stride.first;
    origin = {origin.tile + stride.tile + (first >= n), first >= n ? first - n : first};
  }
}

}  // namespace

template <typename Bits>
void partition(const PartitionProblem& problem, const Bits* x, uint32_t seed, int32_t* positions, Bits* values,
               int32_t* counts, const Context& context) {
  PartitionProblem p = problem;
  if (p.width == 0) p.units = 0;
  const int64_t ranges = ranges_per_item(p.batch, p.units * p.width * sizeof(Bits), 1, context);
  const auto fill = [&](int64_t b, int64_t r, const Buckets<Bits>& out, RangeBuckets<Bits>& found) {
    const Range range = range_of(r, ranges, p.units, kChunkGrain);
    partition_range(p, x + b * p.units * p.width, range, seed, context.isa, out, found);
  };
  fill_buckets(p, Buckets<Bits>{positions, values, counts}, ranges, context, fill);
}

#define ZEN_INSTANTIATE(Bits)                                                                                          \
  template void partition(const PartitionProblem&, const Bits*, uint32_t, int32_t*, Bits*, int32_t*, const Context&)

ZEN_INSTANTIATE(uint16_t);
ZEN_INSTANTIATE(uint32_t);
ZEN_INSTANTIATE(uint64_t);

}  // namespace zen
