#include "xla_ffi/cpu/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/common/hash.h"
#include "xla_ffi/cpu/feedback_leaf.h"
#include "xla_ffi/cpu/feedback_passes.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/selection.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {
namespace {

// Standard deviations that candidates span on each side of the expected threshold of random keys.
constexpr double kDrawnSpread = 4;

// The keys of the totals in `chunks` chunks of a leaf, one in each of as many equal stretches.
template <typename Update, typename T = Accumulator<Update>>
std::vector<BitsOf<T>> sample(const Leaf<Update>& leaf, int64_t chunks, const Context& context) {
  const int64_t stretch = leaf.size / chunks, tasks = std::min(context.parallel.threads(), chunks);
  std::vector<BitsOf<T>> keys(chunks * kSampleChunk);
  context.parallel.run(tasks, [&](int64_t task) {
    const FlushSubnormals flush;
    const Range range = range_of(task, tasks, chunks, 1);
    for (int64_t chunk = range.begin; chunk < range.end; ++chunk) {
      const uint32_t places = static_cast<uint32_t>(stretch - kSampleChunk + 1);
      const int64_t begin = chunk * stretch + reduce_to_range(murmur3(static_cast<uint32_t>(chunk), 0), places);
      T totals[kSampleChunk], velocities[kSampleChunk];
      leaf.accumulate(begin, kSampleChunk, totals, velocities);
      for (int64_t i = 0; i < kSampleChunk; ++i) keys[chunk * kSampleChunk + i] = key_of(bits_of(totals[i]));
    }
  });
  return keys;
}

// Calls body(leaf, item, context) for every item of the batch: one thread per item, or all threads on each item.
template <typename Update, typename Body>
void for_each_leaf(const FeedbackProblem& p, const FeedbackArrays<Update>& arrays, const Context& context,
                   Body&& body) {
  using T = Accumulator<Update>;
  const bool lists = arrays.list.is_wanted();
  if (lists) std::fill_n(arrays.list.count, p.batch, 0);
  if (p.size == 0) return;
  if (!lists) advise_huge_pages(arrays.sent, p.batch * p.size * sizeof(Update));
  const auto run = [&](int64_t b, const Context& inner) {
    const int64_t first = b * p.size;
    FeedbackArrays<Update> at = arrays;
    at.update += first, at.residual += first, at.new_residual += first;
    if (at.velocity != nullptr) at.velocity += first, at.new_velocity += first;
    if (lists) {
      at.list.indices += b * at.list.room, at.list.values += b * at.list.room, at.list.count += b;
    } else {
      at.sent += first;
    }
    body(Leaf<Update>{at, p.size, {T{0}, T{1}}, inner.isa}, b, inner);
  };
  if (p.batch > 1 && ranges_per_item(p.batch, p.size * sizeof(T), 1, context) == 1) {
    const Serial serial;
    context.parallel.run(p.batch, [&](int64_t b) { run(b, {context.isa, serial, context.min_range_bytes}); });
  } else {
    for (int64_t b = 0; b < p.batch; ++b) run(b, context);
  }
}

}  // namespace

template <typename Update>
void send_largest(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, const LargestBounds* bounds,
                  const Accumulator<Update>* scale, double momentum, int64_t chunks, const Context& context) {
  using T = Accumulator<Update>;
  for_each_leaf(problem, arrays, context, [&](Leaf<Update> leaf, int64_t b, const Context& inner) {
    leaf.how = {static_cast<T>(momentum), scale[b]};
    const LargestBounds& bound = bounds[b];
    auto probes = Probes<BitsOf<T>>::between(0, kTopKey<BitsOf<T>>);
    if (chunks > 0) {
      const auto [below, above] = keys_of_ranks(sample(leaf, chunks, inner), bound.below, bound.above);
      probes = Probes<BitsOf<T>>::spanning(below, above);
    }
    Feedback(leaf, Magnitudes<T>{}, inner).send_between(bound.least, bound.most, probes, chunks > 0);
  });
}

template <typename Update>
void send_drawn(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, const uint32_t* step, int64_t k,
                const Context& context) {
  const double share = static_cast<double>(k) / problem.size, keys = kTopKey<uint32_t>;
  const double center = keys * (1 - share), spread = kDrawnSpread * keys * std::sqrt(share / problem.size);
  const auto probes = Probes<uint32_t>::spanning(static_cast<uint32_t>(std::max(center - spread, 0.0)),
                                                 static_cast<uint32_t>(std::min(center + spread, keys)));
  for_each_leaf(problem, arrays, context, [&](const Leaf<Update>& leaf, int64_t b, const Context& inner) {
    Feedback(leaf, Draws{step[b]}, inner).send_between(k, k, probes, true);
  });
}

template <typename Update>
void send_reaching(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, uint64_t key,
                   const Context& context) {
  using T = Accumulator<Update>;
  for_each_leaf(problem, arrays, context, [&](const Leaf<Update>& leaf, int64_t, const Context& inner) {
    Feedback(leaf, Magnitudes<T>{}, inner).send_from(static_cast<BitsOf<T>>(key));
  });
}

#define ZEN_INSTANTIATE(Update)                                                                                      \
  template void send_largest(const FeedbackProblem&, const FeedbackArrays<Update>&, const LargestBounds*,            \
                             const Accumulator<Update>*, double, int64_t, const Context&);                           \
  template void send_drawn(const FeedbackProblem&, const FeedbackArrays<Update>&, const uint32_t*, int64_t,           \
                           const Context&);                                                                          \
  template void send_reaching(const FeedbackProblem&, const FeedbackArrays<Update>&, uint64_t, const Context&)

ZEN_INSTANTIATE(Float16);
ZEN_INSTANTIATE(BFloat16);
ZEN_INSTANTIATE(float);
ZEN_INSTANTIATE(double);

}  // namespace zen
