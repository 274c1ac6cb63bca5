// Oracles of aggregate and hierarchical_hash.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "cuda/aggregate.h"
#include "cuda/common/hash.h"
#include "cuda/hierarchical_hash.h"
#include "cuda/tests/harness.h"

namespace zen::cuda {

// Stored values are small integers, halves and infinities, so float64 arithmetic is exact up to the last rounding.
template <typename T>
struct Stored {
  static T make(double x) { return static_cast<T>(x); }
  static double read(T x) { return static_cast<double>(x); }
};
struct Bf16 {
  uint16_t bits;
};
template <>
struct Stored<Bf16> {
  static Bf16 make(double x) {
    const float f = static_cast<float>(x);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  }
  static double read(Bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
};

template <typename T, typename Sum>
void test_aggregate(const AggregateProblem& p, Element element, double density, int64_t divisor) {
  char name[200];
  std::snprintf(name, sizeof(name),
                "aggregate of element %d: batch %ld n %ld capacity %ld width %ld size %ld density %g divisor %ld",
                int(element), long(p.batch), long(p.n), long(p.capacity), long(p.width), long(p.size), density,
                long(divisor));
  Buffer<int32_t> positions(p.batch * p.n * p.capacity, -7);
  Buffer<T> values(p.batch * p.n * p.capacity * p.width);
  Buffer<int32_t> counts(p.batch * p.n);
  std::vector<Sum> sums(p.batch * p.size * p.width, Sum{0});
  const int64_t stray = pick(0, 3) == 0 ? pick(1, 9) : 0;  // positions beyond the shard
  for (int64_t bucket = 0; bucket < p.batch * p.n; ++bucket) {
    int64_t count = 0;
    for (int64_t t = -stray; t < p.size + stray; ++t) {
      if (uniform() >= density) continue;
      if (count < p.capacity) {
        const int64_t at = bucket * p.capacity + count;
        positions[at] = static_cast<int32_t>(t);
        for (int64_t i = 0; i < p.width; ++i) {
          const T value = Stored<T>::make(std::ldexp(double(pick(-900, 900)), int(pick(-6, 3))));
          values[at * p.width + i] = value;
          if (t >= 0 && t < p.size)
            sums[(bucket / p.n * p.size + t) * p.width + i] += static_cast<Sum>(Stored<T>::read(value));
        }
      }
      ++count;
    }
    counts[bucket] = static_cast<int32_t>(count);
  }
  Buffer<T> shard(p.batch * p.size * p.width);
  CHECK(aggregate(p, element, divisor, positions.data(), values.data(), counts.data(), shard.data(), nullptr) ==
            cudaSuccess,
        "%s", name);
  for (int64_t i = 0; i < shard.size(); ++i) {
    const T expected = Stored<T>::make(divisor == 1 ? sums[i] : sums[i] * (Sum{1} / static_cast<Sum>(divisor)));
    CHECK(std::memcmp(&shard[i], &expected, sizeof(T)) == 0, "%g, expected %g, at %ld of %s", Stored<T>::read(shard[i]),
          Stored<T>::read(expected), long(i), name);
  }
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
      home[index] = zen::hierarchical_hash(index, 0, p.n, seed);
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
          for (int64_t h = 1; h <= p.k; ++h) hashed |= zen::hierarchical_hash(slots[i], h, p.r1, seed) == i;
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
