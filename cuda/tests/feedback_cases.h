// Oracle for send_largest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "cuda/common/hash.h"
#include "cuda/send_largest.h"
#include "cuda/tests/harness.h"
#include "cuda/tests/sum_and_hash_cases.h"

namespace zen::cuda {

template <typename Sum>
using KeyOf = std::conditional_t<sizeof(Sum) == 8, uint64_t, uint32_t>;

template <typename Sum>
KeyOf<Sum> key_bits(Sum x) {
  KeyOf<Sum> bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits & static_cast<KeyOf<Sum>>(~KeyOf<Sum>{0} >> 1);
}

// The part of a finite total that its type on the wire holds.
template <typename Sum>
Sum expected_part(Sum total, Sum) {
  return total;
}
inline float expected_part(float total, zen::Float16) {
  int exponent;
  const float mantissa = std::frexp(std::clamp(total, -65504.0f, 65504.0f), &exponent);
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(mantissa, 11)), exponent - 11);
  return std::abs(rounded) < 0x1p-14f ? std::copysign(0.0f, total) : rounded;
}
inline float expected_part(float total, zen::BFloat16) {
  constexpr float kMax = 0x1.fep127f;
  return static_cast<float>(Stored<zen::BFloat16>::read(Stored<zen::BFloat16>::make(std::clamp(total, -kMax, kMax))));
}

// Which keys are sent, found as zen_jax/selection.py finds them.
template <typename Key>
std::vector<bool> expected_choice(const std::vector<Key>& keys, const std::vector<Key>& sample,
                                  const LargestBounds& bounds) {
  const int64_t size = static_cast<int64_t>(keys.size());
  Key low = 0, high = Key{1} << (8 * sizeof(Key) - 1);
  int64_t reach_low = size, reach_high = 0;
  std::vector<Key> probes;
  const auto probe_evenly = [&] {
    probes.clear();
    for (Key i = 1; i <= 4; ++i) probes.push_back(std::min<Key>(high, low + std::max<Key>((high - low) / 5 * i, i)));
  };
  probe_evenly();
  if (!sample.empty()) {
    std::vector<Key> sorted = sample;
    std::sort(sorted.begin(), sorted.end(), std::greater<Key>());
    const Key below = sorted[bounds.below - 1], above = sorted[bounds.above - 1];
    for (Key i = 0; i < 4; ++i) probes[i] = below + (above - below) / 3 * i;
  }
  while (reach_low > bounds.most && high - low > 1) {
    for (const Key probe : std::vector<Key>(probes)) {
      const int64_t reach = std::count_if(keys.begin(), keys.end(), [&](Key key) { return key >= probe; });
      if (reach >= bounds.least) {
        low = std::max(low, probe);
        reach_low = std::min(reach_low, reach);
      } else {
        high = std::min(high, probe);
        reach_high = std::max(reach_high, reach);
      }
    }
    probe_evenly();
  }
  const bool tied = reach_low > bounds.most && low > 0;
  int64_t ties = tied ? bounds.least - reach_high : size;
  std::vector<bool> chosen(size);
  for (int64_t i = 0; i < size; ++i) chosen[i] = keys[i] > low || (keys[i] == low && ties-- > 0);
  return chosen;
}

template <typename T, typename Sum>
void fill_feedback(Buffer<T>* update, Buffer<Sum>* residual, Buffer<Sum>* velocity) {
  const int kind = static_cast<int>(pick(0, 3));
  const auto value = [&](int64_t i) -> double {
    if (pick(0, 40) == 0) return pick(0, 1) ? 0.0 : -0.0;
    if (pick(0, 300) == 0) return INFINITY;
    if (kind == 0) return static_cast<double>(pick(-3, 3));                             // ties
    if (kind == 1) return i < update->size() / 20 ? 50 + 0.25 * (i % 800) : 0.0;        // in one place
    return (uniform() - 0.5) * std::exp2(static_cast<double>(pick(-30, kind == 2 ? 1 : 16)));  // any magnitude
  };
  for (int64_t i = 0; i < update->size(); ++i) {
    (*update)[i] = Stored<T>::make(value(i));
    (*residual)[i] = static_cast<Sum>(kind < 2 ? 0.0 : value(i));
    if (velocity->size() > 0) (*velocity)[i] = static_cast<Sum>(value(i));
  }
}

// With `lists`, what is sent is requested as a list.
template <typename T, typename Sum>
void test_send_largest(const FeedbackProblem& p, Element element, bool has_velocity, int64_t chunks, bool lists) {
  using Key = KeyOf<Sum>;
  constexpr double kMomentum = 0.75;
  const int64_t all = p.batch * p.size;
  Buffer<T> update(all), sent(all, Stored<T>::make(7));
  Buffer<Sum> residual(all), velocity(has_velocity ? all : 0), scale(p.batch, Sum{0.5});
  fill_feedback(&update, &residual, &velocity);
  Buffer<LargestBounds> bounds(p.batch);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t least = pick(0, 1) ? pick(1, p.size) : pick(1, p.size / 50 + 1);
    const int64_t most = pick(0, 1) ? least : std::min(p.size, 13 * least / 10);
    const double sampled = static_cast<double>(chunks * kSampleChunk), rank = least * sampled / p.size;
    const auto clamped = [&](double r) { return static_cast<int32_t>(std::clamp(r, 1.0, std::max(sampled, 1.0))); };
    const double spread = 3 * std::sqrt(rank) + 1;
    bounds[b] = {static_cast<int32_t>(least), static_cast<int32_t>(most), clamped(rank + spread),
                 clamped(rank - spread)};
  }
  char name[200];
  std::snprintf(name, sizeof(name),
                "send_largest of element %d: batch %ld size %ld chunks %ld velocity %d least %d most %d, %s",
                int(element), long(p.batch), long(p.size), long(chunks), int(has_velocity), int(bounds[0].least),
                int(bounds[0].most), lists ? "listed" : "as an array");

  std::vector<Sum> totals(all), kept(all), new_velocity(velocity.size());
  std::vector<double> wanted(all);
  for (int64_t i = 0; i < all; ++i) {
    Sum gained = static_cast<Sum>(Stored<T>::read(update[i]));
    if (has_velocity) gained = new_velocity[i] = std::fma(static_cast<Sum>(kMomentum), velocity[i], gained * Sum{0.5});
    totals[i] = residual[i] + gained;
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    std::vector<Key> keys(p.size), sample;
    for (int64_t i = 0; i < p.size; ++i) keys[i] = key_bits(totals[b * p.size + i]);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t stretch = p.size / chunks;
      const uint32_t places = static_cast<uint32_t>(stretch - kSampleChunk + 1);
      const int64_t begin = chunk * stretch + reduce_to_range(murmur3(static_cast<uint32_t>(chunk), 0), places);
      sample.insert(sample.end(), keys.begin() + begin, keys.begin() + begin + kSampleChunk);
    }
    const std::vector<bool> chosen = expected_choice(keys, sample, bounds[b]);
    for (int64_t j = 0; j < p.size; ++j) {
      const int64_t i = b * p.size + j;
      const bool finite = std::isfinite(totals[i]), goes = chosen[j] || !finite;
      const Sum part = !goes ? Sum{0} : finite ? expected_part(totals[i], T{}) : totals[i];
      wanted[i] = static_cast<double>(part);
      kept[i] = finite ? totals[i] - part : Sum{0};
      if (has_velocity && goes) new_velocity[i] = 0;
    }
  }

  const int64_t scratch_bytes = p.batch * send_largest_scratch_bytes(p.size, sizeof(T), chunks, has_velocity);
  Buffer<uint32_t> scratch((scratch_bytes + 3) / 4, 0xdeadbeef);
  Sum* const velocity_or_null = has_velocity ? velocity.data() : nullptr;
  const int64_t room = pick(0, 3) ? p.size : pick(1, p.size);
  Buffer<int32_t> indices(lists ? p.batch * room : 0, -7), listed(lists ? p.batch : 0, -7);
  Buffer<T> values(lists ? p.batch * room : 0, Stored<T>::make(7));
  SendLargestArrays arrays = {update.data(), residual.data(), velocity_or_null, nullptr,
                              {},            residual.data(), velocity_or_null};
  if (lists) {
    arrays.list = {indices.data(), values.data(), listed.data(), room};
  } else {
    arrays.sent = sent.data();
  }
  CHECK(send_largest(p, element, arrays, bounds.data(), scale.data(), kMomentum, chunks, scratch.data(), nullptr) ==
            cudaSuccess,
        "%s", name);
  const auto same = [](double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; };
  for (int64_t i = 0; i < all; ++i) {
    CHECK(lists || same(Stored<T>::read(sent[i]), wanted[i]), "%s: sent %ld is %g, not %g", name, long(i),
          Stored<T>::read(sent[i]), wanted[i]);
    CHECK(residual[i] == kept[i], "%s: residual %ld is %g, not %g", name, long(i), double(residual[i]),
          double(kept[i]));
    if (has_velocity) CHECK(same(velocity[i], new_velocity[i]), "%s: velocity %ld", name, long(i));
  }
  for (int64_t b = 0; lists && b < p.batch; ++b) {
    int64_t count = 0;
    for (int64_t i = 0; i < p.size; ++i) {
      const double value = wanted[b * p.size + i];
      if (value == 0) continue;
      if (count < room) {
        const int64_t slot = b * room + count;
        CHECK(indices[slot] == i && same(Stored<T>::read(values[slot]), value),
              "%s: entry %ld is %g at %d, not %g at %ld", name, long(slot),
              Stored<T>::read(values[slot]), indices[slot], value, long(i));
      }
      ++count;
    }
    CHECK(listed[b] == count, "%s: %d are listed, not %ld", name, listed[b], long(count));
    for (int64_t slot = count; slot < room; ++slot) CHECK(indices[b * room + slot] == -7, "%s: a stray entry", name);
  }
}

// Bounds may be traced, and thus unchecked: where fewer than no elements are wanted, all stay and none is listed.
inline void test_bounds_that_no_count_meets(const FeedbackProblem& p, int64_t chunks) {
  Buffer<float> update(p.batch * p.size, 1.5f), residual(p.batch * p.size, 0.25f), scale(p.batch, 1.0f);
  Buffer<LargestBounds> bounds(p.batch, {-5, -5, 0, 0});
  Buffer<int32_t> indices(p.batch, -7), listed(p.batch, -7);
  Buffer<float> values(p.batch, 7.0f);
  const int64_t scratch_bytes = p.batch * send_largest_scratch_bytes(p.size, sizeof(float), chunks, false);
  Buffer<uint32_t> scratch((scratch_bytes + 3) / 4, 0xdeadbeef);
  const SendLargestArrays arrays = {update.data(), residual.data(), nullptr, nullptr,
                                    {indices.data(), values.data(), listed.data(), 1}, residual.data(), nullptr};
  const char* const name = "send_largest of fewer than no elements";
  CHECK(send_largest(p, Element::kFloat32, arrays, bounds.data(), scale.data(), 0.0, chunks, scratch.data(),
                     nullptr) == cudaSuccess,
        "%s", name);
  for (int64_t b = 0; b < p.batch; ++b) CHECK(listed[b] == 0, "%s: %d are listed", name, listed[b]);
  for (int64_t i = 0; i < residual.size(); ++i) CHECK(residual[i] == 1.75f, "%s: %g stays", name, double(residual[i]));
}

// Of an empty gradient, XLA passes null arrays: nothing is sent, and none is listed.
inline void test_empty_feedback() {
  Buffer<float> scale(2, 1.0f);
  Buffer<LargestBounds> bounds(2, {1, 1, 1, 1});
  Buffer<int32_t> listed(2, -7);
  SendLargestArrays arrays = {};
  const auto send = [&] {
    return send_largest({2, 0}, Element::kFloat32, arrays, bounds.data(), scale.data(), 0.0, 0, nullptr, nullptr);
  };
  CHECK(send() == cudaSuccess, "send_largest of an empty gradient");
  arrays.list.count = listed.data();
  CHECK(send() == cudaSuccess && listed[0] == 0 && listed[1] == 0, "send_largest of an empty gradient, listed");
}

inline void random_feedback() {
  const bool has_velocity = pick(0, 1), sampled = pick(0, 1), lists = pick(0, 1);
  const int64_t batch = pick(0, 2) ? 1 : pick(2, 3);
  const int64_t size = sampled ? pick(12000, 30000) / batch : pick(1, 3000);
  const FeedbackProblem p = {batch, size};
  const int64_t chunks = sampled ? pick(1, size / (4 * kSampleChunk)) : 0;
  test_send_largest<float, float>(p, Element::kFloat32, has_velocity, chunks, lists);
  test_send_largest<double, double>(p, Element::kFloat64, has_velocity, chunks, lists);
  test_send_largest<zen::Float16, float>(p, Element::kFloat16, has_velocity, chunks, lists);
  test_send_largest<zen::BFloat16, float>(p, Element::kBfloat16, has_velocity, chunks, lists);
  test_bounds_that_no_count_meets(p, chunks);
}

}  // namespace zen::cuda
