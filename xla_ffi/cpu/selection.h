// The search for the threshold of a selection, the same as in zen_jax/selection.py: by counting how many keys reach
// each of a few probes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
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

// The keys of two ranks, below >= above; the largest key is of rank 1.
template <typename Bits>
std::pair<Bits, Bits> keys_of_ranks(const std::vector<Bits>& keys, int64_t below, int64_t above) {
  below = std::clamp<int64_t>(below, 1, keys.size());  // ranks may be traced and thus unchecked
  above = std::clamp<int64_t>(above, 1, below);
  constexpr int kShift = 8 * sizeof(Bits) - 1 - 12;
  std::vector<int64_t> counts(1 << 12);
  for (Bits key : keys) ++counts[key >> kShift];
  // Reduces the keys to the buckets from that of one rank to that of the other.
  size_t top = counts.size() - 1;
  int64_t before = 0;
  for (; before + counts[top] < above; --top) before += counts[top];
  size_t bottom = top;
  int64_t reached = before + counts[top];
  while (reached < below) reached += counts[--bottom];
  std::vector<Bits> inside;
  inside.reserve(reached - before);
  for (Bits key : keys) {
    if (bottom <= key >> kShift && key >> kShift <= top) inside.push_back(key);
  }
  const auto key_of_rank = [&](int64_t rank) {
    const auto key = inside.begin() + (rank - before - 1);
    std::nth_element(inside.begin(), key, inside.end(), std::greater<Bits>());
    return *key;
  };
  return {key_of_rank(below), key_of_rank(above)};
}

}  // namespace zen
