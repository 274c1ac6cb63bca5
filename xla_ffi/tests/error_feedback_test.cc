// send_largest(), send_drawn() and send_reaching() against their definitions, with a sort instead of a threshold.
#include "xla_ffi/cpu/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "xla_ffi/cpu/selection.h"
#include "xla_ffi/tests/check.h"
#include "xla_ffi/tests/contexts.h"

namespace zen {
namespace {

constexpr double kMomentum = 0.9;
constexpr float kScale = 0.75f;
constexpr uint32_t kStep = 0x9747b28cu;

struct State {
  std::vector<float> update, residual, velocity, sent;

  FeedbackArrays<float> arrays(bool has_velocity) {
    return {update.data(), residual.data(), has_velocity ? velocity.data() : nullptr,
            sent.data(),   residual.data(), has_velocity ? velocity.data() : nullptr};
  }
};

uint32_t magnitude(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x7fffffff;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Puts the totals to send in `residual` and moves the velocity.
State accumulated(State state, bool has_velocity) {
  for (size_t i = 0; i < state.update.size(); ++i) {
    float gained = state.update[i];
    if (has_velocity) {
      gained = state.velocity[i] =
          std::fma(static_cast<float>(kMomentum), state.velocity[i], state.update[i] * kScale);
    }
    state.residual[i] += gained;
  }
  return state;
}

// Sends the chosen accumulated elements, and those that are not finite.
template <typename Chosen>
State expected(State state, Chosen&& chosen) {
  for (size_t i = 0; i < state.residual.size(); ++i) {
    state.sent[i] = 0;
    if (!chosen(i) && std::isfinite(state.residual[i])) continue;
    state.sent[i] = state.residual[i];
    state.residual[i] = state.velocity[i] = 0;
  }
  return state;
}

// The k largest keys; of equal keys, the first.
std::vector<bool> k_largest(const std::vector<uint32_t>& keys, int64_t begin, int64_t end, int64_t k) {
  std::vector<int64_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] > keys[b]; });
  std::vector<bool> chosen(keys.size());
  const bool everything = keys[order[k - 1]] == 0;
  for (int64_t rank = 0; rank < (everything ? end - begin : k); ++rank) chosen[order[rank]] = true;
  return chosen;
}

LargestBounds bounds_of(int64_t least, int64_t most, int64_t chunks, int64_t size) {
  const double sampled = chunks * kSampleChunk, rank = least * sampled / size, spread = 3 * std::sqrt(rank) + 1;
  const auto clamped = [&](double r) { return static_cast<int32_t>(std::clamp(r, 1.0, std::max(sampled, 1.0))); };
  return {static_cast<int32_t>(least), static_cast<int32_t>(most), clamped(rank + spread), clamped(rank - spread)};
}

void check(const State& actual, const State& wanted, bool has_velocity) {
  ZEN_CHECK(same_bits(actual.sent, wanted.sent));
  ZEN_CHECK(same_bits(actual.residual, wanted.residual));
  if (has_velocity) ZEN_CHECK(same_bits(actual.velocity, wanted.velocity));
}

// Checks the list of the non-zero elements of one item, cut off at the room.
void check_list(const std::vector<int32_t>& indices, const std::vector<float>& values, int32_t count, int64_t room,
                int64_t item, const float* sent, int64_t size) {
  int32_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (sent[i] == 0) continue;
    const int64_t entry = item * room + found;
    if (found++ >= room) continue;
    ZEN_CHECK(indices[entry] == i && std::memcmp(&values[entry], &sent[i], sizeof(float)) == 0);
  }
  ZEN_CHECK(count == found);
}

void test_exact(const FeedbackProblem& p, const State& state, int64_t k, int64_t chunks, bool has_velocity,
                const std::string& name) {
  const State totals = accumulated(state, has_velocity);
  std::vector<uint32_t> keys(totals.residual.size());
  std::transform(totals.residual.begin(), totals.residual.end(), keys.begin(), magnitude);
  std::vector<bool> chosen(keys.size());
  for (int64_t b = 0; b < p.batch; ++b) {
    const std::vector<bool> of_item = k_largest(keys, b * p.size, (b + 1) * p.size, k);
    for (size_t i = 0; i < keys.size(); ++i) chosen[i] = chosen[i] || of_item[i];
  }
  const State wanted = expected(totals, [&](size_t i) { return chosen[i]; });
  const std::vector<LargestBounds> bounds(p.batch, bounds_of(k, k, chunks, p.size));
  const std::vector<float> scales(p.batch, kScale);
  for_each_context([&](const Context& context, const std::string& how) {
    Checks::testing = name + ", " + how + ", k " + std::to_string(k) + ", " + std::to_string(chunks) + " chunks";
    State actual = state;
    send_largest(p, actual.arrays(has_velocity), bounds.data(), scales.data(), kMomentum, chunks, context);
    check(actual, wanted, has_velocity);
    for (int64_t room : {ceil_div(k, 3), p.size}) {
      std::vector<int32_t> indices(p.batch * room), counts(p.batch, -1);
      std::vector<float> values(p.batch * room);
      actual = state;
      FeedbackArrays<float> arrays = actual.arrays(has_velocity);
      arrays.sent = nullptr;
      arrays.list = {indices.data(), values.data(), counts.data(), room};
      send_largest(p, arrays, bounds.data(), scales.data(), kMomentum, chunks, context);
      actual.sent = wanted.sent;
      check(actual, wanted, has_velocity);
      for (int64_t b = 0; b < p.batch; ++b) {
        check_list(indices, values, counts[b], room, b, wanted.sent.data() + b * p.size, p.size);
      }
    }
  });
}

// With slack, the same elements are sent whatever the ranges and the instruction set: as many as were asked for or all
// that are not finite, and none smaller than one that stays.
void test_slack(const FeedbackProblem& p, const State& state, int64_t k, int64_t chunks, const std::string& name) {
  const int64_t most = std::min<int64_t>(13 * k / 10, p.size);
  const LargestBounds bounds = bounds_of(k, most, chunks, p.size);
  const State totals = accumulated(state, true);
  const int64_t infinite = std::count_if(totals.residual.begin(), totals.residual.end(),
                                         [](float total) { return !std::isfinite(total); });
  State first;
  for_each_context([&](const Context& context, const std::string& how) {
    Checks::testing = name + ", with slack, " + how + ", k " + std::to_string(k);
    State actual = state;
    send_largest(p, actual.arrays(true), &bounds, &kScale, kMomentum, chunks, context);
    if (first.sent.empty()) first = actual;
    check(actual, first, true);
    int64_t sent = 0;
    uint32_t least_sent = kTopKey<uint32_t>, most_kept = 0;
    for (int64_t i = 0; i < p.size; ++i) {
      const uint32_t key = magnitude(totals.residual[i]);
      if (actual.sent[i] != 0) {
        ++sent;
        least_sent = std::min(least_sent, key);
      } else {
        most_kept = std::max(most_kept, key);
      }
    }
    ZEN_CHECK(sent <= std::max(most, infinite));
    ZEN_CHECK(sent >= k || most_kept == 0);
    ZEN_CHECK(least_sent >= most_kept);
  });
}

void test_others(const FeedbackProblem& p, const State& state, int64_t k, const std::string& name) {
  const State totals = accumulated(state, false);
  std::vector<uint32_t> draws(p.size);
  for (int64_t i = 0; i < p.size; ++i) draws[i] = fmix32(static_cast<uint32_t>(i) ^ kStep) >> 1 | 1;
  const std::vector<bool> chosen = k_largest(draws, 0, p.size, k);
  const State drawn = expected(totals, [&](size_t i) { return chosen[i]; });
  const State reaching = expected(totals, [&](size_t i) { return std::abs(totals.residual[i]) >= 1.5f; });
  for_each_context([&](const Context& context, const std::string& how) {
    Checks::testing = name + ", " + how + ", drawn, then reaching";
    State actual = state;
    send_drawn(p, actual.arrays(false), &kStep, k, context);
    check(actual, drawn, false);
    actual = state;
    send_reaching(p, actual.arrays(false), magnitude(1.5f), context);
    check(actual, reaching, false);
  });
}

State random_state(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  State state;
  for (auto* values : {&state.update, &state.residual, &state.velocity}) {
    for (int64_t i = 0; i < size; ++i) values->push_back(normal(random));
  }
  state.sent.assign(size, 7.0f);
  return state;
}

void test_size(int64_t batch, int64_t size, int64_t chunks) {
  const FeedbackProblem p = {batch, size};
  const State ordinary = random_state(batch * size, size);
  State tied = ordinary, hidden = ordinary, shown = ordinary, special = ordinary;
  for (float& x : tied.update) x = std::round(2 * x);
  std::fill(tied.residual.begin(), tied.residual.end(), 0.0f);
  // The large elements lie where the sample takes too few of them, or nothing but them.
  for (int64_t i = 0; i < batch * size; ++i) hidden.update[i] = i % size < size / 20 ? 100.0f + i % 977 : 0.0f;
  for (int64_t i = 0; i < batch * chunks * kSampleChunk; ++i) {
    const int64_t chunk = i / kSampleChunk % chunks, stretch = size / chunks, item = i / (chunks * kSampleChunk);
    const uint32_t places = static_cast<uint32_t>(stretch - kSampleChunk + 1);
    const int64_t begin = chunk * stretch + reduce_to_range(murmur3(static_cast<uint32_t>(chunk), 0), places);
    shown.update[item * size + begin + i % kSampleChunk] += 1000.0f;
  }
  for (int64_t i = 0; i < batch * size; i += 13) special.update[i] = i % 2 ? INFINITY : -INFINITY;
  for (int64_t i = 0; i < batch * size; i += 29) special.residual[i] = special.update[i] = -0.0f;
  const std::pair<std::string, const State*> states[] = {
      {"ordinary", &ordinary}, {"tied", &tied}, {"hidden", &hidden}, {"shown", &shown}, {"special", &special}};
  for (const auto& [name, state] : states) {
    for (int64_t k : {int64_t{1}, ceil_div(size, 100), ceil_div(size, 5), size}) {
      for (bool has_velocity : {false, true}) test_exact(p, *state, k, chunks, has_velocity, name);
      if (batch > 1) continue;
      test_slack(p, *state, k, chunks, name);
      test_others(p, *state, k, name);
    }
  }
}

// Bounds may be traced and thus unchecked: whatever they are, an element is sent or stays.
void test_any_bounds(const FeedbackProblem& p, const State& state, int64_t chunks) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  const State totals = accumulated(state, false);
  for (const LargestBounds& bounds : {LargestBounds{0, 0, 0, 0}, LargestBounds{-1, 5, kLeast, kLeast},
                                      LargestBounds{5, 5, kMost, 0}, LargestBounds{5, 5, 0, kMost},
                                      LargestBounds{kLeast, kLeast, 900, 1}}) {
    for_each_context([&](const Context& context, const std::string& how) {
      Checks::testing = how + ", bounds from " + std::to_string(bounds.below) + " to " + std::to_string(bounds.above);
      State actual = state;
      send_largest(p, actual.arrays(false), &bounds, &kScale, kMomentum, chunks, context);
      for (int64_t i = 0; i < p.size; ++i) {
        const bool is_sent = actual.sent[i] != 0;
        ZEN_CHECK((is_sent ? actual.sent[i] : actual.residual[i]) == totals.residual[i]);
        ZEN_CHECK(!is_sent || actual.residual[i] == 0);
      }
    });
  }
}

void test_keys_of_ranks() {
  Checks::testing = "keys of ranks";
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<uint32_t> keys = {0, 0, kTopKey<uint32_t> - 1};
  for (int i = 0; i < 1000; ++i) keys.push_back(magnitude(normal(random)));
  std::vector<uint32_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end(), std::greater<uint32_t>());
  const int64_t size = keys.size();
  for (int64_t below : {int64_t{1}, int64_t{2}, int64_t{30}, int64_t{500}, size - 1, size, size + 9}) {
    for (int64_t above : {int64_t{-3}, int64_t{1}, int64_t{29}, int64_t{30}, int64_t{499}, size}) {
      const int64_t low = std::min(below, size), high = std::clamp<int64_t>(above, 1, low);
      ZEN_CHECK(keys_of_ranks(keys, below, above) == std::make_pair(sorted[low - 1], sorted[high - 1]));
    }
  }
}

// Of an empty gradient, XLA passes null arrays: nothing is sent, and none is listed.
void test_empty() {
  const FeedbackProblem p = {2, 0};
  const LargestBounds bounds[] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  const float scales[] = {kScale, kScale};
  for_each_context([&](const Context& context, const std::string& how) {
    Checks::testing = "empty, " + how;
    FeedbackArrays<float> arrays = {};
    send_largest(p, arrays, bounds, scales, kMomentum, 0, context);
    send_reaching(p, arrays, magnitude(1.5f), context);
    int32_t counts[] = {-1, -1};
    arrays.list.count = counts;
    send_largest(p, arrays, bounds, scales, kMomentum, 0, context);
    ZEN_CHECK(counts[0] == 0 && counts[1] == 0);
  });
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_empty();
  zen::test_keys_of_ranks();
  zen::test_size(1, 1, 0);
  zen::test_size(3, 65, 0);
  zen::test_size(1, 5003, 0);
  zen::test_size(1, 20011, 64);
  zen::test_size(2, 20011, 64);
  zen::test_any_bounds({1, 20011}, zen::random_state(20011, 1), 64);
  return zen::test_result();
}
