#include "xla_ffi/cpu/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/common/hash.h"
#include "cuda/common/sent.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/selection.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {
namespace {

// Elements worked on at a time: few enough to stay in the nearest cache between the steps.
constexpr int64_t kBlock = 1024;
// Blocks start at whole masks, and so at cache lines.
constexpr int64_t kMaskGrain = 64;
// A range that lists more than this share of its elements as candidates was misled by the sample.
constexpr int64_t kCandidateShare = 8;
// Sending more than this share is not worth a log of what is sent.
constexpr int64_t kSentShare = 4;
// Standard deviations around the expected threshold of random keys that candidates span.
constexpr double kDrawnSpread = 4;

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
constexpr BitsOf<T> kInfinity = sizeof(T) == 4 ? 0x7f800000u : 0x7ff0000000000000u;

template <typename T>
BitsOf<T> bits_of(T x) {
  BitsOf<T> bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}

template <typename T>
bool is_finite(T x) {
  return (bits_of(x) & (kTopKey<BitsOf<T>> - 1)) < kInfinity<T>;
}

inline float sent_part(float total, float) { return total; }
inline double sent_part(double total, double) { return total; }
inline float sent_part(float total, Float16) { return sent_part_of_float16(total); }
inline float sent_part(float total, BFloat16) { return sent_part_of_bfloat16(total); }

// One leaf of one worker.
template <typename Update>
struct Leaf {
  using T = Accumulator<Update>;

  FeedbackArrays<Update> at;
  int64_t size;
  Momentum<T> how;
  const Isa& isa;

  bool has_velocity() const { return at.velocity != nullptr; }

  void accumulate(int64_t begin, int64_t count, T* total, T* velocity) const {
    const T* const old = has_velocity() ? at.velocity + begin : nullptr;
    isa.accumulate<Update>()(at.update + begin, at.residual + begin, old, how, count, total, velocity);
  }

  void accumulate_in_place(int64_t begin, int64_t count) const {
    accumulate(begin, count, at.new_residual + begin, has_velocity() ? at.new_velocity + begin : nullptr);
  }

  // Sends an element of what has been accumulated. An element that was sent already leaves `sent` as it is.
  void send(int64_t i, Update& sent) const {
    if (has_velocity()) at.new_velocity[i] = 0;
    const T total = at.new_residual[i];
    if (bits_of(total) == 0) return;
    const T part = sent_part(total, Update{});
    round_to(part, &sent);
    at.new_residual[i] = std::is_same_v<T, Update> || !is_finite(total) ? T{0} : total - part;
  }

  // Writes a block of what is sent, and leaves zeros in its place: past the caches if they could not hold all of it.
  void write_sent(int64_t begin, int64_t count, Update* block) const {
    if (size * static_cast<int64_t>(sizeof(Update)) >= kMinStreamBytes) {
      isa.drain(at.sent + begin, block, count * sizeof(Update));
    } else {
      std::memcpy(at.sent + begin, block, count * sizeof(Update));
      std::memset(static_cast<void*>(block), 0, count * sizeof(Update));
    }
  }
};

// What decides who is sent: the magnitudes of totals, or random keys. `kAlwaysSent` is a key that needs no threshold.
template <typename T>
struct Magnitudes {
  using Bits = BitsOf<T>;
  static constexpr bool kAreMagnitudes = true;
  static constexpr Bits kAlwaysSent = kInfinity<T>;
};

struct Draws {
  using Bits = uint32_t;
  static constexpr bool kAreMagnitudes = false;
  static constexpr Bits kAlwaysSent = kTopKey<Bits>;

  uint32_t step;

  void draw(int64_t begin, int64_t count, const Isa& isa, Bits* keys) const {
    isa.draw(static_cast<uint32_t>(begin), count, step, keys);
  }
};

// Keys that reach `high` are sent; those that reach `low` only are decided upon one by one.
template <typename Bits>
struct Bracket {
  Bits low;
  Bits high;
};

// Which keys are sent in the end: those above the threshold, and of those at it the first `ties`.
template <typename Bits>
struct Cut {
  Cut(const Gap<Bits>& gap, int64_t least, int64_t most)
      : threshold(gap.low), tied(gap.reach_low > most && gap.low > 0), ties(least - gap.reach_high) {}

  Bits threshold;
  bool tied;
  int64_t ties;

  // How many keys at the threshold each range may send, given how many it has.
  std::vector<int64_t> allot(std::vector<int64_t> at_threshold) const {
    if (!tied) return at_threshold;
    int64_t left = ties;
    for (int64_t& count : at_threshold) {
      count = std::min(count, left);
      left -= count;
    }
    return at_threshold;
  }
};

template <typename Update, typename Keys>
class Feedback {
  using T = Accumulator<Update>;
  using Bits = typename Keys::Bits;

 public:
  Feedback(const Leaf<Update>& leaf, const Keys& keys, const Context& context)
      : leaf_(leaf), keys_(keys), context_(context), ranges_(ranges_per_item(1, leaf.size * sizeof(T), 1, context)) {}

  void send_from(Bits threshold) {
    threshold = std::min(threshold, Keys::kAlwaysSent);
    for_each_range([&](int64_t, Range range) {
      Room room(leaf_.isa);
      for_each_block(range, [&](int64_t begin, int64_t count) {
        leaf_.accumulate_in_place(begin, count);
        split(begin, count, {threshold, threshold}, room, never, ignored);
      });
    });
  }

  // Sends between `least` and `most` of the largest keys: in one pass if the first probes foretell the threshold.
  void send_between(int64_t least, int64_t most, const Probes<Bits>& first, bool foretold) {
    const Bracket<Bits> bracket = {first.at[0], first.at[kProbes - 1]};
    if (foretold && bracket.high <= Keys::kAlwaysSent && most <= leaf_.size / kSentShare) {
      if (send_within(bracket, least, most, first)) return;
    } else {
      for_each_range([&](int64_t, Range range) {
        for_each_block(range, [&](int64_t begin, int64_t count) { leaf_.accumulate_in_place(begin, count); });
      });
    }
    send_accumulated(least, most, first);
  }

 private:
  // Where a range works on one block.
  struct Room {
    explicit Room(const Isa& isa) : isa(isa), sent(kBlock) {}
    ~Room() { isa.fence(); }

    const Isa& isa;
    AlignedVector<Update> sent;  // zeros between the blocks
    alignas(kCacheLine) Bits keys[kBlock];
    uint16_t reaching[kBlock + kListSlack];
    uint16_t between[kBlock + kListSlack];
  };

  // Elements as they were before they were sent.
  struct Log {
    std::vector<uint32_t> indices;
    std::vector<T> totals;
    std::vector<T> velocities;

    void add(const Leaf<Update>& leaf, int64_t begin, const uint16_t* list, int64_t count) {
      const size_t old = indices.size();
      indices.resize(old + count);
      totals.resize(old + count);
      for (int64_t j = 0; j < count; ++j) {
        indices[old + j] = static_cast<uint32_t>(begin + list[j]);
        totals[old + j] = leaf.at.new_residual[begin + list[j]];
      }
      if (!leaf.has_velocity()) return;
      velocities.resize(old + count);
      for (int64_t j = 0; j < count; ++j) velocities[old + j] = leaf.at.new_velocity[begin + list[j]];
    }

    void reserve(const Leaf<Update>& leaf, size_t count) {
      indices.reserve(count);
      totals.reserve(count);
      if (leaf.has_velocity()) velocities.reserve(count);
    }

    // Backwards: who was sent twice, being infinite and drawn, ends as it was at first.
    void undo(const Leaf<Update>& leaf) const {
      for (size_t j = indices.size(); j-- > 0;) {
        leaf.at.new_residual[indices[j]] = totals[j];
        if (leaf.has_velocity()) leaf.at.new_velocity[indices[j]] = velocities[j];
      }
    }
  };

  // What one pass over a range leaves to be decided.
  struct Pass {
    int64_t reaching = 0;           // keys that reach the higher bound: sent
    std::vector<uint32_t> indices;  // of keys between the bounds
    std::vector<Bits> keys;
    Log log;
    bool misled = false;
  };

  static bool never(int64_t, Bits) { return false; }
  static void ignored(int64_t, const uint16_t*, int64_t) {}

  template <typename Body>
  void for_each_range(Body&& body) const {
    context_.parallel.run(ranges_, [&](int64_t r) {
      const FlushSubnormals flush;
      body(r, range_of(r, ranges_, leaf_.size, kMaskGrain));
    });
  }

  template <typename Body>
  static void for_each_block(Range range, Body&& body) {
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      body(begin, std::min(kBlock, range.end - begin));
    }
  }

  // Divides a block that has been accumulated into what is sent and what stays. decide(i, key) says whether an element
  // between the bounds is sent; sending(begin, list, count) is told of those that reach both, or are not finite, before
  // they are.
  template <typename Decide, typename Sending>
  int64_t split(int64_t begin, int64_t count, Bracket<Bits> bracket, Room& room, Decide&& decide,
                Sending&& sending) const {
    using TotalBits = BitsOf<T>;
    const TotalBits* const totals = reinterpret_cast<const TotalBits*>(leaf_.at.new_residual + begin);
    const auto send = [&](int64_t listed) {
      sending(begin, room.reaching, listed);
      for (int64_t j = 0; j < listed; ++j) leaf_.send(begin + room.reaching[j], room.sent[room.reaching[j]]);
    };
    const Bits* keys;
    if constexpr (Keys::kAreMagnitudes) {
      keys = totals;
    } else {
      const auto infinite = leaf_.isa.template divide<TotalBits>();
      send(infinite(totals, count, kInfinity<T>, kInfinity<T>, room.reaching, room.between).reaching);
      keys_.draw(begin, count, leaf_.isa, room.keys);
      keys = room.keys;
    }
    const auto divide = leaf_.isa.template divide<Bits>();
    const Divided found = divide(keys, count, bracket.low, bracket.high, room.reaching, room.between);
    for (int64_t j = 0; j < found.between; ++j) {
      const int64_t i = room.between[j];
      if (decide(begin + i, keys[i] & (kTopKey<Bits> - 1))) leaf_.send(begin + i, room.sent[i]);
    }
    send(found.reaching);
    leaf_.write_sent(begin, count, room.sent.data());
    return found.reaching;
  }

  // Sends at once what reaches the bracket, and what lies in it when the threshold is known. False, with everything
  // accumulated and nothing sent, where the threshold lies elsewhere.
  bool send_within(Bracket<Bits> bracket, int64_t least, int64_t most, const Probes<Bits>& first) const {
    std::vector<Pass> passes(ranges_);
    for_each_range([&](int64_t r, Range range) { pass(range, bracket, most, passes[r]); });
    int64_t reaching = 0, between = 0;
    bool misled = false;
    for (const Pass& pass : passes) {
      reaching += pass.reaching;
      between += pass.keys.size();
      misled |= pass.misled;
    }
    if (misled || reaching > most || reaching + between < least) {
      for_each_range([&](int64_t r, Range) { passes[r].log.undo(leaf_); });
      return false;
    }
    const auto count = leaf_.isa.template reach<Bits>();
    const Gap<Bits> gap = search<Bits>(leaf_.size, least, most, first, [&](const Probes<Bits>& probes, int64_t* reach) {
      for (int i = 0; i < kProbes; ++i) reach[i] = reaching;
      for (const Pass& pass : passes) count(pass.keys.data(), pass.keys.size(), probes.at, reach);
    });
    const Cut<Bits> cut(gap, least, most);
    std::vector<int64_t> ties(ranges_);
    for (int64_t r = 0; r < ranges_; ++r) {
      ties[r] = std::count(passes[r].keys.begin(), passes[r].keys.end(), cut.threshold);
    }
    ties = cut.allot(ties);
    for_each_range([&](int64_t r, Range) {
      const Pass& pass = passes[r];
      for (size_t j = 0; j < pass.keys.size(); ++j) {
        if (pass.keys[j] > cut.threshold || (pass.keys[j] == cut.threshold && ties[r]-- > 0)) {
          leaf_.send(pass.indices[j], leaf_.at.sent[pass.indices[j]]);
        }
      }
    });
    return true;
  }

  void pass(Range range, Bracket<Bits> bracket, int64_t most, Pass& pass) const {
    const size_t room_for = (range.end - range.begin) / kCandidateShare + kBlock;
    const auto list = [&](int64_t i, Bits key) {
      pass.indices.push_back(static_cast<uint32_t>(i));
      pass.keys.push_back(key);
      return false;
    };
    const auto log = [&](int64_t begin, const uint16_t* listed, int64_t count) {
      pass.log.add(leaf_, begin, listed, count);
    };
    pass.log.reserve(leaf_, most / ranges_ + most / ranges_ / 8 + kBlock);
    Room room(leaf_.isa);
    for_each_block(range, [&](int64_t begin, int64_t count) {
      leaf_.accumulate_in_place(begin, count);
      if (pass.misled) return;
      pass.reaching += split(begin, count, bracket, room, list, log);
      pass.misled = pass.reaching > most || pass.keys.size() > room_for;
    });
  }

  // Finds the threshold by passes over all that has been accumulated, and sends in a last one.
  void send_accumulated(int64_t least, int64_t most, const Probes<Bits>& first) const {
    const Gap<Bits> gap = search<Bits>(leaf_.size, least, most, first, [&](const Probes<Bits>& probes, int64_t* reach) {
      for (const auto& of_range : reach_by_range(probes)) {
        for (int i = 0; i < kProbes; ++i) reach[i] += of_range.at[i];
      }
    });
    const Cut<Bits> cut(gap, least, most);
    Bracket<Bits> bracket = {std::min(cut.threshold, Keys::kAlwaysSent), std::min(cut.threshold, Keys::kAlwaysSent)};
    std::vector<int64_t> ties(ranges_);
    if (cut.tied && cut.threshold < Keys::kAlwaysSent) {
      bracket.high += 1;
      const auto reach = reach_by_range({{bracket.low, bracket.high, bracket.high, bracket.high}});
      for (int64_t r = 0; r < ranges_; ++r) ties[r] = reach[r].at[0] - reach[r].at[1];
      ties = cut.allot(ties);
    }
    for_each_range([&](int64_t r, Range range) {
      Room room(leaf_.isa);
      const auto decide = [&](int64_t, Bits) { return ties[r]-- > 0; };
      for_each_block(range, [&](int64_t begin, int64_t count) { split(begin, count, bracket, room, decide, ignored); });
    });
  }

  struct Reach {
    int64_t at[kProbes] = {};
  };

  std::vector<Reach> reach_by_range(const Probes<Bits>& probes) const {
    std::vector<Reach> by_range(ranges_);
    for_each_range([&](int64_t r, Range range) {
      Room room(leaf_.isa);
      for_each_block(range, [&](int64_t begin, int64_t count) {
        const Bits* keys = room.keys;
        if constexpr (Keys::kAreMagnitudes) {
          keys = reinterpret_cast<const Bits*>(leaf_.at.new_residual + begin);
        } else {
          keys_.draw(begin, count, leaf_.isa, room.keys);
        }
        leaf_.isa.template reach<Bits>()(keys, count, probes.at, by_range[r].at);
      });
    });
    return by_range;
  }

  const Leaf<Update>& leaf_;
  const Keys keys_;
  const Context& context_;
  const int64_t ranges_;
};

// The keys of what would be sent in chunks of a leaf, one in every equal stretch of it.
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
      for (int64_t i = 0; i < kSampleChunk; ++i) {
        keys[chunk * kSampleChunk + i] = bits_of(totals[i]) & (kTopKey<BitsOf<T>> - 1);
      }
    }
  });
  return keys;
}

// body(leaf, item, context) for every item of the batch, each on a thread of its own or all threads on each.
template <typename Update, typename Body>
void for_each_leaf(const FeedbackProblem& p, const FeedbackArrays<Update>& arrays, const Context& context,
                   Body&& body) {
  using T = Accumulator<Update>;
  if (p.size == 0) return;
  advise_huge_pages(arrays.sent, p.batch * p.size * sizeof(Update));
  const auto run = [&](int64_t b, const Context& inner) {
    const int64_t first = b * p.size;
    FeedbackArrays<Update> at = arrays;
    at.update += first, at.residual += first, at.sent += first, at.new_residual += first;
    if (at.velocity != nullptr) at.velocity += first, at.new_velocity += first;
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
      auto keys = sample(leaf, chunks, inner);
      const auto below = key_of_rank(keys, bound.below), above = key_of_rank(keys, bound.above);
      probes = Probes<BitsOf<T>>::spanning(below, above);
    }
    Feedback(leaf, Magnitudes<T>{}, inner).send_between(bound.least, bound.most, probes, chunks > 0);
  });
}

template <typename Update>
void send_drawn(const FeedbackProblem& problem, const FeedbackArrays<Update>& arrays, const uint32_t* step, int64_t k,
                const Context& context) {
  using T = Accumulator<Update>;
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
