#include "xla_ffi/cpu/partition.h"

#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/chunk.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/slots.h"
#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

// Where one range's next entry of one server's bucket goes, counted from the start of all buckets, and where its slot
// ends.
struct Cursor {
  int64_t next;
  int64_t end;
};

template <typename Bits>
struct BucketSpill {
  Spill<int32_t> positions;
  Spill<Bits> values;
};

// What one range found. Cursors count on where slots are full; spills are there once one is.
template <typename Bits>
struct RangeBuckets {
  std::vector<Cursor> cursors;
  std::vector<BucketSpill<Bits>> spills;

  RangeBuckets() = default;
  RangeBuckets(const PartitionProblem& p, int64_t ranges, int64_t r) : cursors(p.n) {
    for (int64_t server = 0; server < p.n; ++server) {
      cursors[server] = {server * p.capacity + slot_begin(p.capacity, ranges, r),
                         server * p.capacity + slot_begin(p.capacity, ranges, r + 1)};
    }
  }

  void spill(uint32_t server, int32_t tile, const Bits* unit, int64_t width) {
    if (spills.empty()) spills.resize(cursors.size());
    BucketSpill<Bits>& bucket = spills[server];
    bucket.positions.push_back(tile);
    bucket.values.insert(bucket.values.end(), unit, unit + width);
  }
};

template <typename Bits>
struct Item {
  const Bits* x;
  int32_t* positions;
  Bits* values;
  int32_t* counts;
};

// Puts a chunk's listed units into their buckets. The chunk after it is prefetched meanwhile, half a cache line a unit:
// memory would idle otherwise.
template <bool kOneElement, typename Bits>
void deal_out(const PartitionProblem& p, const Item<Bits>& item, const Bits* chunk, const ChunkLists& lists,
              int64_t count, RangeBuckets<Bits>& buckets) {
  const int64_t width = kOneElement ? 1 : p.width;
  const char* const ahead = reinterpret_cast<const char*>(chunk) + kChunkBytes + kScanAheadBytes;
  Cursor* const cursors = buckets.cursors.data();
  for (int64_t i = 0; i < count; ++i) {
    if (kOneElement) __builtin_prefetch(ahead + i * 32 % kChunkBytes, 0, 2);
    const uint32_t server = lists.servers[i];
    const Bits* const unit = chunk + lists.units[i] * width;
    Cursor& cursor = cursors[server];
    const int64_t entry = cursor.next++;
    if (entry < cursor.end) {
      item.positions[entry] = lists.tiles[i];
      copy_unit(item.values + entry * width, unit, width);
    } else if (entry < cursor.end + p.capacity) {
      buckets.spill(server, lists.tiles[i], unit, width);
    }
  }
}

template <typename Bits>
void partition_range(const PartitionProblem& p, const Item<Bits>& item, Range range, uint32_t seed, const Isa& isa,
                     RangeBuckets<Bits>& buckets) {
  const auto scan = isa.scan<Bits>();
  const auto deal = p.width == 1 ? deal_out<true, Bits> : deal_out<false, Bits>;
  const uint32_t n = static_cast<uint32_t>(p.n);
  const int64_t step = chunk_units(p.width * sizeof(Bits));
  const ChunkOrigin stride = {static_cast<uint32_t>(step / n), static_cast<uint32_t>(step % n)};
  ChunkOrigin origin = {static_cast<uint32_t>(range.begin / n), static_cast<uint32_t>(range.begin % n)};
  ChunkLists lists;
  for (int64_t unit = range.begin; unit < range.end; unit += step) {
    const Bits* const chunk = item.x + unit * p.width;
    const int64_t count = scan(chunk, p.width, std::min(step, range.end - unit), lists.masks, lists.units);
    isa.route(lists.units, count, origin, n, seed, lists.tiles, lists.servers);
    deal(p, item, chunk, lists, count, buckets);
    const uint32_t first = origin.first + stride.first;
    origin = {origin.tile + stride.tile + (first >= n), first >= n ? first - n : first};
  }
}

template <typename Bits>
void join_ranges(const PartitionProblem& p, const Item<Bits>& item, const RangeBuckets<Bits>* buckets, int64_t ranges,
                 int64_t server) {
  std::vector<int64_t> counts(ranges);
  std::vector<const Spill<int32_t>*> positions(ranges);
  std::vector<const Spill<Bits>*> values(ranges);
  int64_t total = 0;
  for (int64_t r = 0; r < ranges; ++r) {
    counts[r] = buckets[r].cursors[server].next - server * p.capacity - slot_begin(p.capacity, ranges, r);
    total += counts[r];
    if (!buckets[r].spills.empty()) {
      positions[r] = &buckets[r].spills[server].positions;
      values[r] = &buckets[r].spills[server].values;
    }
  }
  item.counts[server] = static_cast<int32_t>(total);
  if (ranges == 1) return;
  close_gaps(item.positions + server * p.capacity, 1, p.capacity, counts, positions);
  close_gaps(item.values + server * p.capacity * p.width, p.width, p.capacity, counts, values);
}

}  // namespace

template <typename Bits>
void partition(const PartitionProblem& problem, const Bits* x, uint32_t seed, int32_t* positions, Bits* values,
               int32_t* counts, const Context& context) {
  PartitionProblem p = problem;
  if (p.width == 0) p.units = 0;
  const int64_t ranges = ranges_per_item(p.batch, p.units * p.width * sizeof(Bits), 1, context);
  const auto item = [&](int64_t b) {
    const int64_t bucket = b * p.n * p.capacity;
    return Item<Bits>{x + b * p.units * p.width, positions + bucket, values + bucket * p.width, counts + b * p.n};
  };
  std::vector<RangeBuckets<Bits>> buckets(p.batch * ranges);
  context.parallel.run(p.batch * ranges, [&](int64_t task) {
    const int64_t b = task / ranges, r = task % ranges;
    buckets[task] = RangeBuckets<Bits>(p, ranges, r);
    partition_range(p, item(b), range_of(r, ranges, p.units, kChunkGrain), seed, context.isa, buckets[task]);
    if (ranges == 1) {
      for (int64_t server = 0; server < p.n; ++server) join_ranges(p, item(b), &buckets[task], ranges, server);
      buckets[task] = {};
    }
  });
  if (ranges == 1) return;
  context.parallel.run(p.batch * p.n, [&](int64_t task) {
    const int64_t b = task / p.n;
    join_ranges(p, item(b), &buckets[b * ranges], ranges, task % p.n);
  });
}

template void partition(const PartitionProblem&, const uint16_t*, uint32_t, int32_t*, uint16_t*, int32_t*,
                        const Context&);
template void partition(const PartitionProblem&, const uint32_t*, uint32_t, int32_t*, uint32_t*, int32_t*,
                        const Context&);
template void partition(const PartitionProblem&, const uint64_t*, uint32_t, int32_t*, uint64_t*, int32_t*,
                        const Context&);

}  // namespace zen
