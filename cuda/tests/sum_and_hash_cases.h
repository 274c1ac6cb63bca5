// Oracles for aggregate, alone and with encode, and for hierarchical_hash.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "cuda/aggregate.h"
#include "cuda/aggregate_encode.h"
#include "cuda/common/bits.h"
#include "cuda/common/float16.h"
#include "cuda/common/hash.h"
#include "cuda/hierarchical_hash.h"
#include "cuda/tests/harness.h"

namespace zen::cuda {

// Stored values are small multiples of 1/64, so float64 arithmetic is exact up to the last rounding.
template <typename T>
struct Stored {
  static T make(double x) { return static_cast<T>(x); }
  static double read(T x) { return static_cast<double>(x); }
};
template <typename T>
struct StoredIn16Bits {
  static T make(double x) {
    T rounded;
    round_to(static_cast<float>(x), &rounded);
    return rounded;
  }
  static double read(T x) { return widen(x); }
};
template <>
struct Stored<zen::Float16> : StoredIn16Bits<zen::Float16> {};
template <>
struct Stored<zen::BFloat16> : StoredIn16Bits<zen::BFloat16> {};

// Workers' messages, and the shard that is their sum.
template <typename T, typename Sum>
struct Inbox {
  Buffer<int32_t> positions;
  Buffer<T> values;
  Buffer<int32_t> counts;
  std::vector<T> shard;

  Inbox(const AggregateProblem& p, double density, int64_t divisor)
      : positions(p.batch * p.n * p.capacity, -7), values(p.batch * p.n * p.capacity * p.width), counts(p.batch * p.n) {
    std::vector<Sum> sums(p.batch * p.size * p.width, Sum{0});
    const int64_t stray = pick(0, 3) == 0 ? pick(1, 9) : 0;   // positions beyond the shard
    const int64_t most = pick(0, 1) ? 900 : 1;                // small values cancel often
    for (int64_t bucket = 0; bucket < p.batch * p.n; ++bucket) {
      int64_t count = 0;
      for (int64_t t = -stray; t < p.size + stray; ++t) {
        if (uniform() >= density) continue;
        if (count < p.capacity) {
          const int64_t at = bucket * p.capacity + count;
          positions[at] = static_cast<int32_t>(t);
          for (int64_t i = 0; i < p.width; ++i) {
            const int scale = most == 1 ? 0 : static_cast<int>(pick(-6, 3));
            const double least = pick(0, 1) ? 0x1p-24 : -0x1p-24;  // of float16: its mean is 0
            const double value = pick(0, 9) == 0 ? least : std::ldexp(double(pick(-most, most)), scale);
            const T stored = Stored<T>::make(value == 0 && pick(0, 1) ? -0.0 : value);
            values[at * p.width + i] = stored;
            if (t >= 0 && t < p.size)
              sums[(bucket / p.n * p.size + t) * p.width + i] += static_cast<Sum>(Stored<T>::read(stored));
          }
        }
        ++count;
      }
      counts[bucket] = static_cast<int32_t>(count);
    }
    for (const Sum sum : sums) {
      const T mean = Stored<T>::make(sum * (Sum{1} / static_cast<Sum>(divisor)));
      shard.push_back(Stored<T>::read(mean) == 0 ? Stored<T>::make(0) : mean);
    }
  }
};

template <typename T, typename Sum>
void test_aggregate(const AggregateProblem& p, Element element, double density, int64_t divisor) {
  char name[200];
  std::snprintf(name, sizeof(name),
                "aggregate of element %d: batch %ld n %ld capacity %ld width %ld size %ld density %g divisor %ld",
                int(element), long(p.batch), long(p.n), long(p.capacity), long(p.width), long(p.size), density,
                long(divisor));
  Inbox<T, Sum> inbox(p, density, divisor);
  Buffer<T> shard(p.batch * p.size * p.width);
  CHECK(aggregate(p, element, divisor, inbox.positions.data(), inbox.values.data(), inbox.counts.data(), shard.data(),
                  nullptr) == cudaSuccess,
        "%s", name);
  for (int64_t i = 0; i < shard.size(); ++i) {
    CHECK(std::memcmp(&shard[i], &inbox.shard[i], sizeof(T)) == 0, "%g, expected %g, at %ld of %s",
          Stored<T>::read(shard[i]), Stored<T>::read(inbox.shard[i]), long(i), name);
  }

  const int64_t room = pick(0, 1) ? p.size + 1 : pick(1, 40);
  const int64_t words = bitmap_words(p.size);
  const T unwritten = Stored<T>::make(12345);
  Buffer<uint32_t> bitmap(p.batch * words, 0xabababab);
  Buffer<T> units(p.batch * room * p.width, unwritten);
  Buffer<int32_t> count(p.batch, -7);
  Buffer<uint32_t> scratch(
      (p.batch * aggregate_encode_scratch_bytes(p.size, p.width, element_bytes(element)) + 3) / 4, 0xdeadbeef);
  CHECK(aggregate_encode({p, room}, element, divisor, inbox.positions.data(), inbox.values.data(), inbox.counts.data(),
                         bitmap.data(), units.data(), count.data(), scratch.data(), nullptr) == cudaSuccess,
        "encode, %s", name);
  for (int64_t b = 0; b < p.batch; ++b) {
    std::vector<uint32_t> expected_bitmap(words);
    std::vector<T> expected_units(room * p.width, unwritten);
    int32_t expected_count = 0;
    for (int64_t t = 0; t < p.size; ++t) {
      const T* const row = inbox.shard.data() + (b * p.size + t) * p.width;
      if (std::all_of(row, row + p.width, [](T x) { return Stored<T>::read(x) == 0; })) continue;
      expected_bitmap[t / 32] |= 1u << (t % 32);
      if (expected_count < room) std::copy(row, row + p.width, expected_units.begin() + expected_count * p.width);
      ++expected_count;
    }
    CHECK(count[b] == expected_count, "count %d, expected %d, room %ld, encode, %s", count[b], expected_count,
          long(room), name);
    CHECK(std::equal(expected_bitmap.begin(), expected_bitmap.end(), bitmap.data() + b * words), "bitmap, encode, %s",
          name);
    CHECK(std::memcmp(expected_units.data(), units.data() + b * room * p.width, room * p.width * sizeof(T)) == 0,
          "units, room %ld, encode, %s", long(room), name);
  }
}

// A caller that breaks the promise of ascending positions gets arbitrary sums, and nothing is written outside of them.
inline void test_unordered_positions(const AggregateProblem& p) {
  Buffer<int32_t> positions(p.batch * p.n * p.capacity), counts(p.batch * p.n, static_cast<int32_t>(p.capacity));
  for (int64_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int32_t>(pick(0, 3) ? pick(-9, p.size + 9) : static_cast<int64_t>(rng()));
  }
  Buffer<float> values(positions.size() * p.width, 1.0f), shard(p.batch * p.size * p.width);
  CHECK(aggregate(p, Element::kFloat32, 1, positions.data(), values.data(), counts.data(), shard.data(), nullptr) ==
            cudaSuccess,
        "unordered");
  const int64_t room = p.size / 3 + 1;
  Buffer<uint32_t> bitmap(p.batch * bitmap_words(p.size));
  Buffer<float> units(p.batch * room * p.width);
  Buffer<int32_t> count(p.batch);
  Buffer<uint32_t> scratch((p.batch * aggregate_encode_scratch_bytes(p.size, p.width, sizeof(float)) + 3) / 4);
  CHECK(aggregate_encode({p, room}, Element::kFloat32, 1, positions.data(), values.data(), counts.data(), bitmap.data(),
                         units.data(), count.data(), scratch.data(), nullptr) == cudaSuccess,
        "unordered, encode");
}

inline void test_hierarchical_hash(const HierarchicalHashProblem& p, uint32_t seed) {
  char name[200];
  std::snprintf(name, sizeof(name), "hierarchical_hash: batch %ld indices %ld n %ld r1 %ld r2 %ld k %ld", long(p.batch),
                long(p.indices), long(p.n), long(p.r1), long(p.r2), long(p.k));
  Buffer<int32_t> indices(p.batch * p.indices);
  Buffer<uint32_t> memory(p.batch * p.n * (p.r1 + p.r2), 3);
  Buffer<int32_t> counts(p.batch * p.n, -7), overflow(p.batch, -7);
  for (int64_t b = 0; b < p.batch; ++b) {
    std::set<uint32_t> distinct;
    while (int64_t(distinct.size()) < p.indices) distinct.insert(static_cast<uint32_t>(pick(0, 4 * p.indices)));
    std::vector<uint32_t> shuffled(distinct.begin(), distinct.end());
    std::shuffle(shuffled.begin(), shuffled.end(), rng);
    for (int64_t i = 0; i < p.indices; ++i)
      indices[b * p.indices + i] = pick(0, 9) ? static_cast<int32_t>(shuffled[i]) : -1;
  }
  CHECK(
      hierarchical_hash(p, seed, indices.data(), memory.data(), counts.data(), overflow.data(), nullptr) == cudaSuccess,
      "%s", name);
  for (int64_t b = 0; b < p.batch; ++b) {
    std::map<uint32_t, int64_t> home;
    std::vector<int32_t> expected_counts(p.n);
    for (int64_t i = 0; i < p.indices; ++i) {
      const uint32_t index = static_cast<uint32_t>(indices[b * p.indices + i]);
      if (index == kEmptySlot) continue;
      home[index] = hash_family(index, 0, p.n, seed);
      ++expected_counts[home[index]];
    }
    CHECK(std::equal(expected_counts.begin(), expected_counts.end(), counts.data() + b * p.n), "counts of %s", name);
    int64_t lost = static_cast<int64_t>(home.size());
    int64_t surely_lost = 0;
    for (int64_t q = 0; q < p.n; ++q) {
      const uint32_t* const slots = memory.data() + (b * p.n + q) * (p.r1 + p.r2);
      bool serial_ended = false;
      for (int64_t i = 0; i < p.r1 + p.r2; ++i) {
        if (slots[i] == kEmptySlot) {
          serial_ended |= i >= p.r1;
          continue;
        }
        CHECK(i < p.r1 || !serial_ended, "a hole in the serial slots of %s", name);
        const auto found = home.find(slots[i]);
        CHECK(found != home.end() && found->second == q, "index %u in partition %ld of %s", slots[i], long(q), name);
        if (i < p.r1) {
          bool hashed = false;
          for (int64_t h = 1; h <= p.k; ++h) hashed |= hash_family(slots[i], h, p.r1, seed) == i;
          CHECK(hashed, "slot %ld of %s", long(i), name);
        }
        home.erase(found);
        --lost;
      }
      surely_lost += std::max<int64_t>(0, expected_counts[q] - p.r1 - p.r2);
    }
    CHECK(overflow[b] == lost && lost >= surely_lost, "overflow %d, missing %ld, of %s", overflow[b], long(lost), name);
  }
}

}  // namespace zen::cuda
