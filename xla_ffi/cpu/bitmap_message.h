// A hash bitmap's message, written in one pass by several ranges of a shard at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/common/bits.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/chunk.h"
#include "xla_ffi/cpu/context.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/slots.h"
#include "xla_ffi/cpu/split.h"

namespace zen {

// One range's part of the values.
template <typename Bits>
struct RangeMessage {
  Bits* values;
  int64_t room;
  int64_t count = 0;
  Spill<Bits> spill;
};

inline void write_words(const uint64_t* masks, int64_t units, uint32_t* words) {
  for (int64_t w = 0; w < bitmap_words(units); ++w) {
    words[w] = static_cast<uint32_t>(masks[w / 2] >> (w % 2 * kBitsPerWord));
  }
}

template <bool kOneElement, typename Bits>
void append(const EncodeProblem& p, const Bits* chunk, const uint16_t* units, int64_t count,
            RangeMessage<Bits>& message) {
  const int64_t width = kOneElement ? 1 : p.width;
  const int64_t fit = std::clamp<int64_t>(message.room - message.count, 0, count);
  Bits* const out = message.values + message.count * width;
  for (int64_t i = 0; i < fit; ++i) copy_unit(out + i * width, chunk + units[i] * width, width);
  const int64_t wanted = std::clamp<int64_t>(p.capacity - message.count, 0, count);
  for (int64_t i = fit; i < wanted; ++i) {
    const Bits* const unit = chunk + units[i] * width;
    message.spill.insert(message.spill.end(), unit, unit + width);
  }
  message.count += count;
}

// Encodes the units of a range, the first of which lies at `units`; `words` is the bitmap of the whole shard.
template <typename Bits>
void encode_range(const EncodeProblem& p, const Bits* units, Range range, uint32_t* words, const Isa& isa,
                  RangeMessage<Bits>& message) {
  const auto scan = isa.scan<Bits>();
  const auto append_chunk = p.width == 1 ? append<true, Bits> : append<false, Bits>;
  const int64_t step = chunk_units(p.width * sizeof(Bits));
  ChunkLists lists;
  for (int64_t unit = range.begin; unit < range.end; unit += step) {
    const Bits* const chunk = units + (unit - range.begin) * p.width;
    const int64_t in_chunk = std::min(step, range.end - unit);
    const int64_t count = scan(chunk, p.width, in_chunk, lists.masks, lists.units);
    write_words(lists.masks, in_chunk, words + unit / kBitsPerWord);
    append_chunk(p, chunk, lists.units, count, message);
  }
}

template <typename Bits>
int32_t join_ranges(const EncodeProblem& p, Bits* values, const RangeMessage<Bits>* messages, int64_t ranges) {
  std::vector<int64_t> counts(ranges);
  std::vector<const Spill<Bits>*> spills(ranges);
  int64_t total = 0;
  for (int64_t r = 0; r < ranges; ++r) {
    total += counts[r] = messages[r].count;
    spills[r] = &messages[r].spill;
  }
  if (ranges > 1) close_gaps(values, p.width, p.capacity, counts, spills);
  return static_cast<int32_t>(total);
}

// Calls encode(b, range, words, message), which encodes a range of units, for ranges of every batch item, and joins
// what they found. Units without elements are ignored.
template <typename Bits, typename Encode>
void write_bitmap_messages(EncodeProblem p, uint32_t* words, Bits* values, int32_t* count, const Context& context,
                           Encode&& encode) {
  if (p.width == 0) {
    std::fill_n(words, p.batch * p.words, 0);
    p.size = 0;
  }
  const int64_t ranges = ranges_per_item(p.batch, p.size * p.width * sizeof(Bits), 1, context);
  const auto messages = context.parallel.results(p.batch * ranges, [&](int64_t task) {
    const int64_t b = task / ranges, r = task % ranges;
    const int64_t begin = slot_begin(p.capacity, ranges, r);
    RangeMessage<Bits> message = {values + (b * p.capacity + begin) * p.width,
                                  slot_begin(p.capacity, ranges, r + 1) - begin};
    encode(b, range_of(r, ranges, p.size, kChunkGrain), words + b * p.words, message);
    return message;
  });
  context.parallel.run(p.batch, [&](int64_t b) {
    count[b] = join_ranges(p, values + b * p.capacity * p.width, &messages[b * ranges], ranges);
  });
}

}  // namespace zen
