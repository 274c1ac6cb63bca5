// The servers' buckets, filled in one pass by several ranges of the input at once.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/slots.h"

namespace zen {

// Those of one batch item: positions [n, capacity], values [n, capacity, width], counts [n].
template <typename Bits>
struct Buckets {
  int32_t* positions;
  Bits* values;
  int32_t* counts;

  Buckets item(const PartitionProblem& p, int64_t b) const {
    const int64_t first = b * p.n * p.capacity;
    return {positions + first, values + first * p.width, counts + b * p.n};
  }
};

// Where one range puts its next entry in one server's bucket, counted from the start of all buckets, and where its slot
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

// What one range found. Cursors keep counting when their slots are full; there are no spills until one overflows.
template <typename Bits>
struct RangeBuckets {
  int64_t most_spilled = 0;  // a bucket has no room for more of the range's entries than that beyond its slot
  std::vector<Cursor> cursors;
  std::vector<BucketSpill<Bits>> spills;

  RangeBuckets() = default;
  RangeBuckets(const PartitionProblem& p, int64_t ranges, int64_t r)
      : most_spilled(p.capacity - p.capacity / ranges), cursors(p.n) {
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

// Puts a unit of `width` elements at the server's cursor. The caller may know `width` at compile time.
template <typename Bits>
inline void put(const Buckets<Bits>& out, RangeBuckets<Bits>& range, Cursor* cursors, uint32_t server, int32_t tile,
                const Bits* unit, int64_t width) {
  Cursor& cursor = cursors[server];
  const int64_t entry = cursor.next++;
  if (entry < cursor.end) {
    prefetch_next_line(out.positions + entry);
    prefetch_next_line(out.values + entry * width);
    out.positions[entry] = tile;
    copy_unit(out.values + entry * width, unit, width);
  } else if (entry < cursor.end + range.most_spilled) {
    range.spill(server, tile, unit, width);
  }
}

template <typename Bits>
void join_ranges(const PartitionProblem& p, const Buckets<Bits>& out, const RangeBuckets<Bits>* found, int64_t ranges,
                 int64_t server) {
  std::vector<int64_t> counts(ranges);
  std::vector<const Spill<int32_t>*> positions(ranges);
  std::vector<const Spill<Bits>*> values(ranges);
  int64_t total = 0;
  for (int64_t r = 0; r < ranges; ++r) {
    counts[r] = found[r].cursors[server].next - server * p.capacity - slot_begin(p.capacity, ranges, r);
    total += counts[r];
    if (!found[r].spills.empty()) {
      positions[r] = &found[r].spills[server].positions;
      values[r] = &found[r].spills[server].values;
    }
  }
  out.counts[server] = static_cast<int32_t>(total);
  if (ranges == 1) return;
  close_gaps(out.positions + server * p.capacity, 1, p.capacity, counts, positions);
  close_gaps(out.values + server * p.capacity * p.width, p.width, p.capacity, counts, values);
}

// Calls fill(item, r, buckets, found), which puts the units of range r, for each of `ranges` ranges of every batch
// item, and joins what the ranges of an item found.
template <typename Bits, typename Fill>
void fill_buckets(const PartitionProblem& p, const Buckets<Bits>& out, int64_t ranges, const Context& context,
                  Fill&& fill) {
  std::vector<RangeBuckets<Bits>> found(p.batch * ranges);
  context.parallel.run(p.batch * ranges, [&](int64_t task) {
    const int64_t b = task / ranges, r = task % ranges;
    found[task] = RangeBuckets<Bits>(p, ranges, r);
    fill(b, r, out.item(p, b), found[task]);
    if (ranges == 1) {
      for (int64_t server = 0; server < p.n; ++server) join_ranges(p, out.item(p, b), &found[task], ranges, server);
      found[task] = {};
    }
  });
  if (ranges == 1) return;
  context.parallel.run(p.batch * p.n, [&](int64_t task) {
    const int64_t b = task / p.n;
    join_ranges(p, out.item(p, b), &found[b * ranges], ranges, task % p.n);
  });
}

}  // namespace zen
