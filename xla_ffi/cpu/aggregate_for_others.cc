#include "xla_ffi/cpu/aggregate_for_others.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/block_summer.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {
namespace {

// Sets the bits of a worker's entries in its bitmap.
void mark_sent(const AggregateProblem& p, const int32_t* positions, int32_t count, uint32_t* words) {
  std::fill_n(words, bitmap_words(p.size), 0);
  const int64_t entries = std::clamp<int64_t>(count, 0, p.capacity);
  for (int64_t entry = 0; entry < entries; ++entry) {
    const int64_t unit = positions[entry];
    if (unit >= 0 && unit < p.size) words[unit / kBitsPerWord] |= uint32_t{1} << (unit % kBitsPerWord);
  }
}

// Takes the bits that it alone has set from each of n bitmaps, in [begin, end) of their words.
void clear_alone(int64_t n, int64_t stride, int64_t begin, int64_t end, uint32_t* words) {
  for (int64_t word = begin; word < end; ++word) {
    uint32_t once = 0, twice = 0;
    for (int64_t worker = 0; worker < n; ++worker) {
      const uint32_t sent = words[worker * stride + word];
      twice |= once & sent;
      once |= sent;
    }
    for (int64_t worker = 0; worker < n; ++worker) {
      uint32_t& sent = words[worker * stride + word];
      sent = once & ~(sent & ~twice);
    }
  }
}

template <typename T>
bool is_nonzero_unit(const T* unit, int64_t width) {
  return std::any_of(unit, unit + width, [](T element) { return widen(element) != 0; });
}

}  // namespace

template <typename T>
void aggregate_for_others(const AggregateEncodeProblem& p, const int32_t* positions, const T* values,
                          const int32_t* counts, int64_t divisor, uint32_t* words, T* units, int32_t* held,
                          int32_t* nonzero, const Context& context) {
  const int64_t workers = p.batch * p.n, stride = bitmap_words(p.size);
  int64_t sent = 0;
  for (int64_t i = 0; i < workers; ++i) sent += std::clamp<int64_t>(counts[i], 0, p.capacity);
  const int64_t bitmap_bytes = workers * stride * sizeof(uint32_t);
  context.run(workers, bitmap_bytes + sent * sizeof(int32_t), [&](int64_t i) {
    mark_sent(p, positions + i * p.capacity, counts[i], words + i * stride);
  });
  const int64_t ranges = ranges_per_item(p.batch, p.size * p.width * sizeof(T), 1, context);
  const auto words_of = [&](int64_t r) {
    const Range range = range_of(r, ranges, p.size, kBitsPerWord);
    return Range{bitmap_words(range.begin), bitmap_words(range.end)};
  };
  // How many units each worker gets of the ranges before each one, and of all.
  std::vector<int64_t> before(p.batch * (ranges + 1) * p.n);
  context.run(p.batch * ranges, bitmap_bytes, [&](int64_t task) {
    const int64_t b = task / ranges, r = task % ranges;
    const Range range = words_of(r);
    uint32_t* const item = words + b * p.n * stride;
    clear_alone(p.n, stride, range.begin, range.end, item);
    int64_t* const found = &before[(b * (ranges + 1) + r + 1) * p.n];
    for (int64_t worker = 0; worker < p.n; ++worker) {
      found[worker] = context.isa.count_bits(item + worker * stride + range.begin, range.end - range.begin);
    }
  });
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t* const item = &before[b * (ranges + 1) * p.n];
    for (int64_t i = p.n; i < (ranges + 1) * p.n; ++i) item[i] += item[i - p.n];
    for (int64_t worker = 0; worker < p.n; ++worker) {
      held[b * p.n + worker] = static_cast<int32_t>(item[ranges * p.n + worker]);
    }
  }

  const std::vector<int64_t> found_nonzero = context.parallel.results(p.batch * ranges, [&](int64_t task) {
    int64_t found = 0;
    const KeepSubnormals keep;
    const int64_t b = task / ranges, r = task % ranges;
    const Range range = range_of(r, ranges, p.size, kBitsPerWord);
    // Blocks of sums are of several units, however wide; memory for units without width may have no address.
    if (range.begin == range.end || p.width == 0) return found;
    const uint32_t* const item = words + b * p.n * stride;
    T* const out = units + b * p.n * p.room * p.width;
    const int64_t* const of_range = &before[(b * (ranges + 1) + r) * p.n];
    AlignedVector<int64_t> next(of_range, of_range + p.n);  // in cache lines of its own, since every unit advances it
    BlockSummer<T> summer(p, Inbox<T>{positions, values, counts}.item(p, b), divisor, kBitsPerWord);
    summer.sum(range, [&](int64_t first, int64_t in_block, T* block) {
      for (int64_t word = first / kBitsPerWord; word < bitmap_words(first + in_block); ++word) {
        uint32_t left = 0;  // one worker or another gets every unit that was sent
        for (int64_t worker = 0; worker < p.n; ++worker) left |= item[worker * stride + word];
        for (; left != 0; left &= left - 1) {
          const uint32_t bit = left & -left;
          const T* const unit = block + (word * kBitsPerWord + __builtin_ctz(left) - first) * p.width;
          found += is_nonzero_unit(unit, p.width);
          for (int64_t worker = 0; worker < p.n; ++worker) {
            if ((item[worker * stride + word] & bit) == 0) continue;
            const int64_t rank = next[worker]++;
            if (rank < p.room) copy_unit(out + (worker * p.room + rank) * p.width, unit, p.width);
          }
        }
      }
      std::memset(static_cast<void*>(block), 0, in_block * p.width * sizeof(T));
    });
    return found;
  });
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t total = 0;
    for (int64_t r = 0; r < ranges; ++r) total += found_nonzero[b * ranges + r];
    nonzero[b] = static_cast<int32_t>(total);
  }
}

#define ZEN_INSTANTIATE(T)                                                                                          \
  template void aggregate_for_others(const AggregateEncodeProblem&, const int32_t*, const T*, const int32_t*,      \
                                     int64_t, uint32_t*, T*, int32_t*, int32_t*, const Context&)

ZEN_INSTANTIATE(float);
ZEN_INSTANTIATE(double);
ZEN_INSTANTIATE(Float16);
ZEN_INSTANTIATE(BFloat16);

}  // namespace zen
