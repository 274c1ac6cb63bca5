// What error feedback has sent: how to undo it, and the gradient in COO.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/context.h"
#include "xla_ffi/cpu/feedback_leaf.h"

namespace zen {

// Elements of a leaf as they were before they were sent.
template <typename Update>
struct SentLog {
  using T = Accumulator<Update>;

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

  void add(const Leaf<Update>& leaf, int64_t i) {
    constexpr uint16_t kFirst = 0;
    add(leaf, i, &kFirst, 1);
  }

  void reserve(const Leaf<Update>& leaf, size_t count) {
    indices.reserve(count);
    totals.reserve(count);
    if (leaf.has_velocity()) velocities.reserve(count);
  }

  // Backwards, so that an element sent twice, as both infinite and drawn, ends as it was at first.
  void undo(const Leaf<Update>& leaf) const {
    for (size_t j = indices.size(); j-- > 0;) {
      leaf.at.new_residual[indices[j]] = totals[j];
      if (leaf.has_velocity()) leaf.at.new_velocity[indices[j]] = velocities[j];
    }
  }

  // The part of a total that is sent.
  static Update sent(T total) {
    Update part;
    round_to(sent_part(total, Update{}), &part);
    return part;
  }

  int64_t count_nonzero() const {
    int64_t count = 0;
    for (const T total : totals) count += is_nonzero(bits_of(widen(sent(total))));
    return count;
  }

  // Writes what was sent of the entries begin .. end - 1, except zeros, and returns the entry after them.
  int64_t write(size_t begin, size_t end, const SentList<Update>& out, int64_t to) const {
    for (size_t j = begin; j < end && to < out.room; ++j) {
      const Update value = sent(totals[j]);
      if (!is_nonzero(bits_of(widen(value)))) continue;
      out.indices[to] = static_cast<int32_t>(indices[j]);
      out.values[to++] = value;
    }
    return to;
  }
};

// What one range has sent, in two logs of ascending indices.
template <typename Update>
struct SentInTwo {
  const SentLog<Update>& early;
  const SentLog<Update>& late;

  // How many entries are non-zero.
  int64_t count() const { return early.count_nonzero() + late.count_nonzero(); }

  // Writes them by ascending index, from entry `to` on and as far as there is room.
  void write(const SentList<Update>& out, int64_t to) const {
    size_t begin = 0;
    for (size_t j = 0; j < late.indices.size(); ++j) {
      size_t end = begin;
      while (end < early.indices.size() && early.indices[end] < late.indices[j]) ++end;
      to = early.write(begin, end, out, to);
      to = late.write(j, j + 1, out, to);
      begin = end;
    }
    early.write(begin, early.indices.size(), out, to);
  }
};

// Writes what the ranges have sent, sent_by(r), one after another.
template <typename Update, typename SentBy>
void write_list(const SentList<Update>& out, int64_t ranges, SentBy&& sent_by, const Context& context) {
  std::vector<int64_t> first(ranges + 1);
  context.parallel.run(ranges, [&](int64_t r) { first[r + 1] = sent_by(r).count(); });
  for (int64_t r = 0; r < ranges; ++r) first[r + 1] += first[r];
  *out.count = static_cast<int32_t>(first[ranges]);
  context.parallel.run(ranges, [&](int64_t r) { sent_by(r).write(out, first[r]); });
}

}  // namespace zen
