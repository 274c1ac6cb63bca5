// The passes of error feedback over one worker's gradient, divided among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/common/keys.h"
#include "xla_ffi/cpu/feedback_leaf.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/selection.h"
#include "xla_ffi/cpu/sent_log.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {

// Elements processed at a time: few enough to stay in the nearest cache between steps, and for memory to be busy with
// what the first step prefetched until the last is done.
constexpr int64_t kBlock = 256;
// Blocks start at mask boundaries, and so at cache lines.
constexpr int64_t kMaskGrain = 64;
// A range that lists more than this share of its elements as candidates was misled by the sample.
constexpr int64_t kCandidateShare = 8;
// Sending more than this share is not worth a log of what is sent.
constexpr int64_t kSentShare = 4;
// How many candidates ahead of the current one memory is prefetched.
constexpr size_t kPrefetched = 16;

// What decides what is sent: the magnitudes of totals, or random keys. Keys from `kAlwaysSent` on need no threshold.
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

// Keys that reach `high` are sent; those that reach only `low` are decided one by one.
template <typename Bits>
struct Bracket {
  Bits low;
  Bits high;
};

// Which keys are finally sent: those above the threshold, and the first `ties` of those at it.
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

  // Sends between `least` and `most` of the largest keys: in one pass if the first probes predict the threshold.
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
  // The working memory of a range for one block.
  struct Room {
    explicit Room(const Isa& isa) : isa(isa), sent(kBlock) {}
    ~Room() { isa.fence(); }

    const Isa& isa;
    AlignedVector<Update> sent;  // zeros between blocks, unless what is sent is listed
    alignas(kCacheLine) Bits keys[kBlock];
    uint16_t reaching[kBlock + kListSlack];
    uint16_t between[kBlock + kListSlack];
  };

  // What one pass over a range leaves undecided.
  struct Pass {
    int64_t reaching = 0;           // keys that reach the higher bound: sent
    std::vector<uint32_t> indices;  // of keys between the bounds
    std::vector<Bits> keys;
    SentLog<Update> log;
    bool misled = false;
  };

  static bool never(int64_t, Bits) { return false; }
  static void ignored(int64_t, const uint16_t*, int64_t) {}

  // Calls body(r, range) for each range. Returns what these return, if anything.
  template <typename Body>
  auto for_each_range(Body&& body) const {
    const auto task = [&](int64_t r) {
      const FlushSubnormals flush;
      return body(r, range_of(r, ranges_, leaf_.size, kMaskGrain));
    };
    if constexpr (std::is_void_v<decltype(task(0))>) {
      context_.parallel.run(ranges_, task);
    } else {
      return context_.parallel.results(ranges_, task);
    }
  }

  template <typename Body>
  static void for_each_block(Range range, Body&& body) {
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      body(begin, std::min(kBlock, range.end - begin));
    }
  }

  // Divides an accumulated block into what is sent and what stays. decide(i, key) says whether an element between the
  // bounds is sent; sending(begin, list, count) is called for those that reach both, or are not finite, before they are
  // sent.
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
      const auto infinite = leaf_.isa.template classify<TotalBits>();
      send(infinite(totals, count, kInfinity<T>, kInfinity<T>, room.reaching, room.between).reaching);
      keys_.draw(begin, count, leaf_.isa, room.keys);
      keys = room.keys;
    }
    const auto classify = leaf_.isa.template classify<Bits>();
    const Classified found = classify(keys, count, bracket.low, bracket.high, room.reaching, room.between);
    for (int64_t j = 0; j < found.between; ++j) {
      const int64_t i = room.between[j];
      if (decide(begin + i, key_of(keys[i]))) leaf_.send(begin + i, room.sent[i]);
    }
    send(found.reaching);
    if (!leaf_.lists_sent()) leaf_.write_sent(begin, count, room.sent.data());
    return found.reaching;
  }

  // Sends what reaches the top of the bracket at once, and what lies in it once the threshold is known. Returns false,
  // with everything accumulated and nothing sent, if the threshold lies elsewhere.
  bool send_within(Bracket<Bits> bracket, int64_t least, int64_t most, const Probes<Bits>& first) const {
    const auto passes = for_each_range([&](int64_t, Range range) { return pass(range, bracket, most); });
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
    const auto late = for_each_range([&](int64_t r, Range) {
      const Pass& pass = passes[r];
      SentLog<Update> log;
      int64_t ties_left = ties[r];
      Update listed;
      for (size_t j = 0; j < pass.keys.size(); ++j) {
        if (j + kPrefetched < pass.keys.size()) leaf_.prefetch(pass.indices[j + kPrefetched]);
        if (pass.keys[j] > cut.threshold || (pass.keys[j] == cut.threshold && ties_left-- > 0)) {
          const int64_t i = pass.indices[j];
          if (leaf_.lists_sent()) log.add(leaf_, i);
          leaf_.send(i, leaf_.lists_sent() ? listed : leaf_.at.sent[i]);
        }
      }
      return log;
    });
    list([&](int64_t r) { return SentInTwo<Update>{passes[r].log, late[r]}; });
    return true;
  }

  Pass pass(Range range, Bracket<Bits> bracket, int64_t most) const {
    Pass pass;
    const size_t room_for = (range.end - range.begin) / kCandidateShare + kBlock;
    const auto list = [&](int64_t i, Bits key) {
      pass.indices.push_back(static_cast<uint32_t>(i));
      pass.keys.push_back(key);
      return false;
    };
    const auto log = [&](int64_t begin, const uint16_t* listed, int64_t count) {
      pass.log.add(leaf_, begin, listed, count);
    };
    const int64_t expected = std::max<int64_t>(most, 0) / ranges_;  // bounds may be traced and thus unchecked
    pass.log.reserve(leaf_, expected + expected / 8 + kBlock);
    Room room(leaf_.isa);
    for_each_block(range, [&](int64_t begin, int64_t count) {
      leaf_.accumulate_in_place(begin, count);
      if (pass.misled) return;
      pass.reaching += split(begin, count, bracket, room, list, log);
      pass.misled = pass.reaching > most || pass.keys.size() > room_for;
    });
    return pass;
  }

  // Finds the threshold by passes over all accumulated totals, and sends in a last pass.
  void send_accumulated(int64_t least, int64_t most, const Probes<Bits>& first) const {
    const Gap<Bits> gap = search<Bits>(leaf_.size, least, most, first, [&](const Probes<Bits>& probes, int64_t* reach) {
      for (const Reach& of_range : reach_by_range(probes)) {
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
    struct Logs {
      SentLog<Update> reaching;
      SentLog<Update> tied;
    };
    const auto logs = for_each_range([&](int64_t r, Range range) {
      Room room(leaf_.isa);
      Logs logs;
      int64_t ties_left = ties[r];
      const auto decide = [&](int64_t i, Bits) {
        const bool chosen = ties_left-- > 0;
        if (chosen && leaf_.lists_sent()) logs.tied.add(leaf_, i);
        return chosen;
      };
      const auto log = [&](int64_t begin, const uint16_t* listed, int64_t count) {
        if (leaf_.lists_sent()) logs.reaching.add(leaf_, begin, listed, count);
      };
      for_each_block(range, [&](int64_t begin, int64_t count) { split(begin, count, bracket, room, decide, log); });
      return logs;
    });
    list([&](int64_t r) { return SentInTwo<Update>{logs[r].reaching, logs[r].tied}; });
  }

  template <typename SentBy>
  void list(SentBy&& sent_by) const {
    if (leaf_.lists_sent()) write_list(leaf_.at.list, ranges_, sent_by, context_);
  }

  struct Reach {
    int64_t at[kProbes] = {};
  };

  std::vector<Reach> reach_by_range(const Probes<Bits>& probes) const {
    return for_each_range([&](int64_t, Range range) {
      Reach reach;
      alignas(kCacheLine) Bits drawn[kBlock];
      for_each_block(range, [&](int64_t begin, int64_t count) {
        const Bits* keys = drawn;
        if constexpr (Keys::kAreMagnitudes) {
          keys = reinterpret_cast<const Bits*>(leaf_.at.new_residual + begin);
        } else {
          keys_.draw(begin, count, leaf_.isa, drawn);
        }
        leaf_.isa.template reach<Bits>()(keys, count, probes.at, reach.at);
      });
      return reach;
    });
  }

  const Leaf<Update>& leaf_;
  const Keys keys_;
  const Context& context_;
  const int64_t ranges_;
};

}  // namespace zen
