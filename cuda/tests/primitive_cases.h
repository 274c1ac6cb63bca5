// Cases for what the kernels are built from: division of small numbers, and the look-back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/common/divide.h"
#include "cuda/emulation/cuda_runtime.h"
#include "cuda/look_back.cuh"
#include "cuda/tests/harness.h"

namespace zen::cuda {

inline void test_small_divisor() {
  for (uint32_t d : {1u, 2u, 3u, 7u, 16u, 127u, 1000u, 1023u, 1024u, 8191u, 8192u}) {
    const SmallDivisor divisor(d);
    for (uint32_t v = 0; uint64_t{v} * d < (uint64_t{1} << 31) && v < 40000; ++v) {
      CHECK(divisor.quotient(v) == v / d && divisor.remainder(v, v / d) == v % d, "%u / %u", v, d);
    }
    const uint32_t most = static_cast<uint32_t>(((uint64_t{1} << 31) - 1) / d);
    CHECK(divisor.quotient(most) == most / d, "%u / %u", most, d);
  }
}

// A warp looks back while another block publishes, in any order, the states that it needs, and of a chain no others.
template <typename States, int kReads = States::kPerLane>
void test_look_back(int lanes, uint32_t chunk) {
  struct Publication {
    int64_t chunk;
    uint32_t counter, count;
    bool is_end;
  };
  constexpr bool kChain = std::is_same_v<States, ChunkChain>;
  emulation::set_schedule(rng(), 2);
  const int64_t counters = kWarpSize / lanes;
  Buffer<uint32_t> words(States::words(chunk + 1, counters)), found(counters);
  std::vector<uint32_t> expected(counters);
  std::vector<Publication> published;
  for (uint32_t c = 0; c < counters; ++c) {
    const int64_t ended = pick(0, 3) ? int64_t{chunk} - 1 - pick(0, 70) : -1;
    for (int64_t i = 0; i < chunk; ++i) {
      const auto count = static_cast<uint32_t>(pick(0, 1) ? pick(0, 9) : pick(0, 1 << 20));
      expected[c] += count;
      const bool is_end = kChain ? i == ended : pick(0, 1);
      if (is_end) published.push_back({i, c, expected[c], true});
      if (!kChain || i > ended) published.push_back({i, c, count, false});
    }
  }
  std::shuffle(published.begin(), published.end(), rng);
  emulation::run_grid(2, kThreads, 0, [&] {
    const States states(words.data(), chunk + 1, counters);
    if (blockIdx.x == 1) {
      for (size_t i = threadIdx.x; i < published.size(); i += kThreads) {
        const Publication& each = published[i];
        if (each.is_end) {
          states.publish_end(each.chunk, each.counter, each.count);
        } else {
          states.publish_count(each.chunk, each.counter, each.count);
        }
      }
    }
    if (blockIdx.x == 1 || warp_id() != 0) return;
    const LaneGroup group(lanes);
    const uint32_t counter = lane_id() / lanes;
    const bool wanted = counter < counters - 1 || counters == 1;
    const uint32_t before = states.template look_back<kReads>(group, counter, chunk, wanted);
    if (group.lane == 0) found[counter] = before;
  });
  if (counters > 1) expected[counters - 1] = 0;  // was not wanted
  for (int64_t c = 0; c < counters; ++c) {
    CHECK(found[c] == expected[c], "look-back of %d lanes from chunk %u finds %u, not %u", lanes, chunk,
          found[c], expected[c]);
  }
}

inline void test_look_backs() {
  for (const uint32_t chunk : {0, 1, 7, 8, 9, 31, 32, 33, 64, 65, 200, 400, 1500}) {
    for (const int lanes : {1, 2, 4, 8, 32}) {
      test_look_back<ChunkChain>(lanes, chunk);
      test_look_back<ChunkGroups>(lanes, chunk);
    }
    test_look_back<ChunkGroups, 1>(32, chunk);
  }
}

}  // namespace zen::cuda
