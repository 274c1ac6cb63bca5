// The sums of a server's shard, a block at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/split.h"

namespace zen {

// What all workers sent to one server: positions [n, capacity], values [n, capacity, width], counts [n].
template <typename T>
struct Inbox {
  const int32_t* positions;
  const T* values;
  const int32_t* counts;

  Inbox item(const AggregateProblem& p, int64_t b) const {
    const int64_t first = b * p.n * p.capacity;
    return {positions + first, values + first * p.width, counts + b * p.n};
  }
};

// Sums blocks of positions, one worker after another. They fit in the first-level cache, unless the rows are so wide
// that the least block does not.
template <typename T>
class BlockSummer {
 public:
  // Blocks hold a multiple of `grain` units, or the whole shard.
  BlockSummer(const AggregateProblem& p, const Inbox<T>& inbox, int64_t divisor, int64_t grain)
      : p_(p),
        inbox_(inbox),
        reciprocal_(Accumulator<T>{1} / static_cast<Accumulator<T>>(divisor)),
        block_units_(std::min(p.size, std::max<int64_t>(1, kBlockBytes / unit_bytes(p.width) / grain) * grain)),
        sums_(block_units_ * p.width),
        rounded_(kRounds ? sums_.size() : 0),
        next_(p.n) {}

  // Calls take(unit, units, block) for the blocks of a range in order, with the sums of `units` units from `unit` on.
  // take() must leave zeros in the block.
  template <typename Take>
  void sum(Range range, Take&& take) {
    for (int64_t worker = 0; worker < p_.n; ++worker) {
      const int32_t* const positions = inbox_.positions + worker * p_.capacity;
      next_[worker] = std::lower_bound(positions, positions + entries(worker), range.begin) - positions;
    }
    for (int64_t unit = range.begin; unit < range.end; unit += block_units_) {
      const int64_t units = std::min(block_units_, range.end - unit);
      for (int64_t worker = 0; worker < p_.n; ++worker) {
        next_[worker] = p_.width == 1 ? add_worker<true>(worker, unit, units) : add_worker<false>(worker, unit, units);
      }
      take(unit, units, finished(units * p_.width));
    }
  }

 private:
  static constexpr int64_t kBlockBytes = 16 << 10;
  static constexpr bool kRounds = !std::is_same_v<T, Accumulator<T>>;

  static int64_t unit_bytes(int64_t width) { return std::max<int64_t>(width, 1) * sizeof(Accumulator<T>); }

  int64_t entries(int64_t worker) const {
    return std::clamp<int64_t>(inbox_.counts[worker], 0, p_.capacity);
  }

  // Adds the worker's entries in [begin, begin + units) and returns the first entry after them.
  template <bool kOneElement>
  int64_t add_worker(int64_t worker, int64_t begin, int64_t units) {
    const int64_t width = kOneElement ? 1 : p_.width;
    const int32_t* const positions = inbox_.positions + worker * p_.capacity;
    const T* const values = inbox_.values + worker * p_.capacity * width;
    const int64_t last = entries(worker), end = begin + units;
    int64_t entry = next_[worker];
    for (; entry < last && positions[entry] < end; ++entry) {
      const uint64_t local = static_cast<uint64_t>(positions[entry] - begin);
      if (local >= static_cast<uint64_t>(units)) continue;  // the caller broke the order: ignored
      Accumulator<T>* const sum = sums_.data() + local * width;
      for (int64_t i = 0; i < width; ++i) sum[i] += widen(values[entry * width + i]);
    }
    const int64_t taken = entry - next_[worker];
    prefetch(positions + entry, taken);
    prefetch(values + entry * width, taken * width);
    return entry;
  }

  // For the next block, which needs about as much: hardware does not follow so many streams, read a little at a time.
  template <typename Entry>
  static void prefetch(const Entry* from, int64_t count) {
    const char* const first = reinterpret_cast<const char*>(from);
    const int64_t bytes = std::min<int64_t>(count * sizeof(Entry), kBlockBytes);
    for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(first + byte, 0, 2);
  }

  T* finished(int64_t elements) {
    // Of members, a compiler may think that a store changes them: its loops would have no vectors.
    const Accumulator<T> reciprocal = reciprocal_;
    Accumulator<T>* const sums = sums_.data();
    if (reciprocal != 1) {
      for (int64_t i = 0; i < elements; ++i) sums[i] = without_negative_zero(sums[i] * reciprocal);
    }
    if constexpr (kRounds) {
      T* const rounded = rounded_.data();
      for (int64_t i = 0; i < elements; ++i) {
        T mean;
        round_to(sums[i], &mean);
        rounded[i] = without_negative_zero(mean);
      }
      std::fill_n(sums, elements, Accumulator<T>{0});
      return rounded;
    } else {
      return sums;
    }
  }

  const AggregateProblem& p_;
  const Inbox<T> inbox_;
  const Accumulator<T> reciprocal_;  // XLA compiles pmean's division to this
  const int64_t block_units_;
  AlignedVector<Accumulator<T>> sums_;
  AlignedVector<T> rounded_;
  std::vector<int64_t> next_;
};

}  // namespace zen
