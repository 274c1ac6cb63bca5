#include "xla_ffi/cpu/message.h"

#include <algorithm>

#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

constexpr int64_t kWordBytes = sizeof(uint32_t);

char* bytes_of(uint32_t* words) { return reinterpret_cast<char*>(words); }
const char* bytes_of(const uint32_t* words) { return reinterpret_cast<const char*>(words); }

// Entries of `range`, of which those from `filled` on become zeros.
void copy_filled(char* to, const char* from, int64_t entry_bytes, Range range, int64_t filled) {
  const int64_t begin = range.begin * entry_bytes, end = range.end * entry_bytes;
  const int64_t middle = std::clamp(filled * entry_bytes, begin, end);
  std::copy(from + begin, from + middle, to + begin);
  std::fill(to + middle, to + end, 0);
}

// Calls body(bucket, range of entries) for all of every bucket, numbered through the batch.
template <typename Body>
void for_each_range(const MessageProblem& p, const Context& context, const Body& body) {
  const int64_t buckets = p.batch * p.n;
  const int64_t ranges = ranges_per_item(buckets, p.words() * kWordBytes, 1, context);
  context.parallel.run(buckets * ranges,
                       [&](int64_t task) { body(task / ranges, range_of(task % ranges, ranges, p.capacity, 1)); });
}

}  // namespace

void pack(const MessageProblem& p, const PartsToPack& parts, const int32_t* counts,
          const std::vector<uint32_t*>& messages, const Context& context) {
  for_each_range(p, context, [&](int64_t bucket, Range range) {
    const int64_t filled = std::clamp<int64_t>(counts[bucket], 0, p.capacity);
    uint32_t* to = messages[bucket % p.n] + bucket / p.n * p.words();
    if (range.begin == 0) std::copy_n(parts.head + bucket * p.head_words, p.head_words, to);
    to += p.head_words;
    if (p.has_positions) {
      const int32_t* const positions = parts.positions + bucket * p.room;
      copy_filled(bytes_of(to), reinterpret_cast<const char*>(positions), sizeof(int32_t), range, filled);
      to += p.capacity;
    }
    const char* const units = parts.units + bucket * p.room * p.unit_bytes;
    copy_filled(bytes_of(to), units, p.unit_bytes, range, filled);
    if (range.begin < range.end && range.end == p.capacity) {
      std::fill(bytes_of(to) + p.capacity * p.unit_bytes, bytes_of(to) + p.unit_words() * kWordBytes, 0);
    }
  });
}

void unpack(const MessageProblem& p, const uint32_t* messages, const UnpackedParts& parts, const Context& context) {
  for_each_range(p, context, [&](int64_t bucket, Range range) {
    const uint32_t* from = messages + bucket * p.words();
    if (range.begin == 0) std::copy_n(from, p.head_words, parts.head + bucket * p.head_words);
    from += p.head_words;
    if (p.has_positions) {
      char* const positions = reinterpret_cast<char*>(parts.positions + bucket * p.capacity);
      copy_filled(positions, bytes_of(from), sizeof(int32_t), range, p.capacity);
      from += p.capacity;
    }
    copy_filled(parts.units + bucket * p.capacity * p.unit_bytes, bytes_of(from), p.unit_bytes, range, p.capacity);
  });
}

}  // namespace zen
