// A bucket that several ranges of the input fill at once, in one pass and without knowing each other's counts: range r
// writes into its slot, the r-th part of the bucket, and what does not fit goes to a spill. Afterwards the gaps are
// closed. For evenly spread non-zeros nothing spills, and a single range writes straight to its place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace zen {

// Where the slot of range r starts in a bucket of `capacity` entries.
inline int64_t slot_begin(int64_t capacity, int64_t ranges, int64_t r) {
  return static_cast<int64_t>(static_cast<__int128>(capacity) * r / ranges);
}

template <typename T>
using Spill = std::vector<T>;

// Puts the entries of all ranges one after another. Range r has counts[r] entries, and spills[r] holds those beyond its
// slot; entries beyond the capacity are dropped.
template <typename T>
void close_gaps(T* bucket, int64_t width, int64_t capacity, const std::vector<int64_t>& counts,
                const std::vector<const Spill<T>*>& spills) {
  const int64_t ranges = static_cast<int64_t>(counts.size());
  struct Move {
    int64_t from, to, in_slot, kept;
  };
  std::vector<Move> moves(ranges);
  int64_t to = 0;
  for (int64_t r = 0; r < ranges; ++r) {
    const int64_t from = slot_begin(capacity, ranges, r);
    const int64_t kept = std::min(counts[r], capacity - to);
    moves[r] = {from, to, std::min(kept, slot_begin(capacity, ranges, r + 1) - from), kept};
    to += kept;
  }
  const auto move = [&](const Move& m) {
    std::memmove(bucket + m.to * width, bucket + m.from * width, m.in_slot * width * sizeof(T));
  };
  // Entries that move up go first, from the last; then those that move down, from the first: no move overwrites entries
  // that have yet to move. Spilled entries come last, into room that is free by then.
  for (int64_t r = ranges - 1; r >= 0; --r) {
    if (moves[r].to > moves[r].from) move(moves[r]);
  }
  for (int64_t r = 0; r < ranges; ++r) {
    if (moves[r].to < moves[r].from) move(moves[r]);
  }
  for (int64_t r = 0; r < ranges; ++r) {
    const Move& m = moves[r];
    if (m.kept > m.in_slot) {
      std::memcpy(bucket + (m.to + m.in_slot) * width, spills[r]->data(), (m.kept - m.in_slot) * width * sizeof(T));
    }
  }
}

}  // namespace zen
