// The search for the threshold of a selection, the same as in zen_jax/selection.py: by counting how many keys reach
// each of a few probes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/common/keys.h"

namespace zen {

// At least `least` keys reach `low`; fewer reach `high`.
template <typename Bits>
struct Gap {
  Bits low;
  Bits high;
  int64_t reach_low;
  int64_t reach_high;
};

template <typename Bits>
struct Probes {
  Bits at[kProbes];

  // Evenly spaced inside a gap.
  static Probes between(Bits low, Bits high) {
    Probes probes;
    for (int i = 0; i < kProbes; ++i) {
      const Bits step = static_cast<Bits>(i + 1);
      probes.at[i] = std::min<Bits>(low + std::max<Bits>((high - low) / (kProbes + 1) * step, step), high);
    }
    return probes;
  }

  // From one key up to another.
  static Probes spanning(Bits below, Bits above) {
    Probes probes;
    above = std::max(below, above);  // a search whose probes descend would not end
    for (int i = 0; i < kProbes; ++i) probes.at[i] = below + (above - below) / (kProbes - 1) * static_cast<Bits>(i);
    return probes;
  }
};

// The gap among `size` keys whose `low` is reached by at most `most` keys, or that no key lies within.
// count(probes, reach) sets reach[i] to how many keys reach probes.at[i].
template <typename Bits, typename Count>
Gap<Bits> search(int64_t size, int64_t least, int64_t most, Probes<Bits> probes, Count&& count) {
  Gap<Bits> gap = {0, kTopKey<Bits>, size, 0};
  while (gap.reach_low > most && gap.high - gap.low > 1) {
    int64_t reach[kProbes] = {};
    count(probes, reach);
    for (int i = 0; i < kProbes; ++i) {
      if (reach[i] >= least) {
        gap.low = std::max(gap.low, probes.at[i]);
        gap.reach_low = std::min(gap.reach_low, reach[i]);
      } else {
        gap.high = std::min(gap.high, probes.at[i]);
        gap.reach_high = std::max(gap.reach_high, reach[i]);
      }
    }
    probes = Probes<Bits>::between(gap.low, gap.high);
  }
  return gap;
}

// The key of rank `rank`, the largest being 1.
template <typename Bits>
Bits key_of_rank(const std::vector<Bits>& keys, int64_t rank) {
  rank = std::clamp<int64_t>(rank, 1, keys.size());  // ranks may be traced and thus unchecked
  constexpr int kShift = 8 * sizeof(Bits) - 1 - 12;
  std::vector<int64_t> counts(1 << 12);
  for (Bits key : keys) ++counts[key >> kShift];
  // Reduces the rank to the bucket that holds it, and the keys to that bucket.
  size_t bucket = counts.size() - 1;
  for (; rank > counts[bucket]; --bucket) rank -= counts[bucket];
  std::vector<Bits> inside;
  inside.reserve(counts[bucket]);
  for (Bits key : keys) {
    if (key >> kShift == bucket) inside.push_back(key);
  }
  std::nth_element(inside.begin(), inside.begin() + (rank - 1), inside.end(), std::greater<Bits>());
  return inside[rank - 1];
}

}  // namespace zen
