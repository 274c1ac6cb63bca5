// The sizes of one call of each primitive. `batch` is the product of the leading dimensions; the other fields describe
// one batch item. A unit is `width` consecutive elements; positions are local indices on a server.
#pragma once

#include <cstdint>

namespace zen {

struct PartitionProblem {
  int64_t batch;
  int64_t units;
  int64_t width;
  int64_t n;
  int64_t capacity;
};

struct AggregateProblem {
  int64_t batch;
  int64_t n;
  int64_t capacity;
  int64_t width;
  int64_t size;  // units in the shard
};

struct AggregateEncodeProblem : AggregateProblem {
  int64_t room;  // for the units that the encode finds
};

struct EncodeProblem {
  int64_t batch;
  int64_t size;  // units in the shard
  int64_t width;
  int64_t words;
  int64_t capacity;
};

struct DecodeProblem {
  int64_t batch;
  int64_t units;
  int64_t width;
  int64_t n;
  int64_t words;
  int64_t capacity;
};

struct HierarchicalHashProblem {
  int64_t batch;
  int64_t indices;
  int64_t n;
  int64_t r1;
  int64_t r2;
  int64_t k;
};

struct UniqueIdsProblem {
  int64_t batch;
  int64_t size;
};

// A message is a head, 32-bit positions if it has any, and units, each in whole words.
struct MessageProblem {
  int64_t batch;
  int64_t n;
  int64_t head_words;
  bool has_positions;
  bool joined;       // the buckets follow one another in one list, without gaps
  int64_t room;      // of each bucket, or of that list
  int64_t capacity;  // of the messages
  int64_t unit_bytes;

  int64_t unit_words() const { return (capacity * unit_bytes + 3) / 4; }
  int64_t words() const { return head_words + (has_positions ? capacity : 0) + unit_words(); }
};

// Elements of each chunk that a selection samples.
constexpr int64_t kSampleChunk = 64;

struct FeedbackProblem {
  int64_t batch;
  int64_t size;  // elements of the gradient
};

// How many elements to send at least and at most, and the ranks in the sample of the two keys between which the search
// for the threshold starts.
struct LargestBounds {
  int32_t least;
  int32_t most;
  int32_t below;
  int32_t above;
};

}  // namespace zen
