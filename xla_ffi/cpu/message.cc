#include "xla_ffi/cpu/message.h"

#include <algorithm>

#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

constexpr int64_t kWordBytes = sizeof(uint32_t);

// Where a bucket's entries lie among those of the whole batch, and how many of them are sent.
struct Bucket {
  int64_t begin;
  int64_t filled;
};

// The buckets of the whole batch, each with its count of entries but at most `most`. No count leads beyond the room.
std::vector<Bucket> buckets_of(const MessageProblem& p, const int32_t* counts, int64_t most) {
  std::vector<Bucket> buckets(p.batch * p.n);
  const int64_t in_room = p.joined ? p.n : 1;
  int64_t begin = 0;
  for (int64_t i = 0; i < p.batch * p.n; ++i) {
    if (i % in_room == 0) begin = i / in_room * p.room;
    const int64_t left = (i / in_room + 1) * p.room - begin;
    const int64_t count = std::clamp<int64_t>(counts[i], 0, std::min(most, left));
    buckets[i] = {begin, std::min(count, p.capacity)};
    begin += count;
  }
  return buckets;
}

// Copies the entries of `range`, of `width` Ts each; from `filled` on they become `beyond`.
template <typename T>
void copy_filled(T* to, const T* from, int64_t width, Range range, int64_t filled, T beyond) {
  const int64_t begin = range.begin * width, end = range.end * width;
  const int64_t middle = std::clamp(filled * width, begin, end);
  std::copy(from + begin, from + middle, to + begin);
  std::fill(to + middle, to + end, beyond);
}

// Calls body(bucket, range) for all ranges of entries of each bucket's message; buckets are numbered through the batch.
template <typename Body>
void for_each_range(const MessageProblem& p, const Context& context, const Body& body) {
  const int64_t buckets = p.batch * p.n;
  const int64_t ranges = ranges_per_item(buckets, p.words() * kWordBytes, 1, context);
  context.run(buckets * ranges, buckets * p.words() * kWordBytes,
              [&](int64_t task) { body(task / ranges, range_of(task % ranges, ranges, p.capacity, 1)); });
}

}  // namespace

void pack(const MessageProblem& p, const PartsToPack& parts, const int32_t* counts, int32_t beyond,
          const std::vector<uint32_t*>& messages, const Context& context) {
  const std::vector<Bucket> buckets = buckets_of(p, counts, p.room);
  for_each_range(p, context, [&](int64_t i, Range range) {
    const Bucket bucket = buckets[i];
    uint32_t* to = messages[i % p.n] + i / p.n * p.words();
    if (range.begin == 0) std::copy_n(parts.head + i * p.head_words, p.head_words, to);
    to += p.head_words;
    if (p.has_positions) {
      copy_filled(reinterpret_cast<int32_t*>(to), parts.positions + bucket.begin, 1, range, bucket.filled, beyond);
      to += p.capacity;
    }
    char* const units = reinterpret_cast<char*>(to);
    copy_filled(units, parts.units + bucket.begin * p.unit_bytes, p.unit_bytes, range, bucket.filled, char{0});
    if (range.begin < range.end && range.end == p.capacity) {
      std::fill(units + p.capacity * p.unit_bytes, units + p.unit_words() * kWordBytes, 0);
    }
  });
}

void unpack(const MessageProblem& p, const uint32_t* messages, const UnpackedParts& parts, const Context& context) {
  for_each_range(p, context, [&](int64_t i, Range range) {
    const uint32_t* from = messages + i * p.words();
    if (range.begin == 0) std::copy_n(from, p.head_words, parts.head + i * p.head_words);
    from += p.head_words;
    if (p.has_positions) {
      copy_filled(parts.positions + i * p.capacity, reinterpret_cast<const int32_t*>(from), 1, range, p.capacity, 0);
      from += p.capacity;
    }
    char* const units = parts.units + i * p.capacity * p.unit_bytes;
    copy_filled(units, reinterpret_cast<const char*>(from), p.unit_bytes, range, p.capacity, char{0});
  });
}

void unpack_joined(const MessageProblem& p, const uint32_t* messages, const int32_t* counts, int32_t* positions,
                   char* units, const Context& context) {
  const std::vector<Bucket> buckets = buckets_of(p, counts, p.capacity);
  for_each_range(p, context, [&](int64_t i, Range range) {
    const Bucket bucket = buckets[i];
    const uint32_t* const from = messages + i * p.words() + p.head_words;
    range = {std::min(range.begin, bucket.filled), std::min(range.end, bucket.filled)};
    copy_filled(positions + bucket.begin, reinterpret_cast<const int32_t*>(from), 1, range, bucket.filled, 0);
    copy_filled(units + bucket.begin * p.unit_bytes, reinterpret_cast<const char*>(from + p.capacity), p.unit_bytes,
                range, bucket.filled, char{0});
  });
}

}  // namespace zen
