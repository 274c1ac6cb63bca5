// What one range sends as a list: a gradient in COO.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/context.h"
#include "xla_ffi/cpu/error_feedback.h"
#include "xla_ffi/cpu/isa.h"

namespace zen {

// By ascending index, without zeros.
template <typename Update>
struct SentEntries {
  using Bits = std::conditional_t<sizeof(Update) == 2, uint16_t, std::conditional_t<sizeof(Update) == 4, uint32_t, uint64_t>>;

  std::vector<int32_t> indices;
  std::vector<Update> values;

  void add(int64_t i, Update value) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (!is_nonzero(bits)) return;
    indices.push_back(static_cast<int32_t>(i));
    values.push_back(value);
  }

  // Adds a block of what is sent, and leaves zeros in its place. `masks` and `list` are where the scan may write.
  void add_block(int64_t begin, int64_t count, Update* block, const Isa& isa, uint64_t* masks, uint16_t* list) {
    const int64_t listed = isa.scan<Bits>()(reinterpret_cast<const Bits*>(block), 1, count, masks, list);
    const size_t old = indices.size();
    indices.resize(old + listed);
    values.resize(old + listed);
    for (int64_t j = 0; j < listed; ++j) {
      indices[old + j] = static_cast<int32_t>(begin + list[j]);
      values[old + j] = block[list[j]];
    }
    std::memset(static_cast<void*>(block), 0, count * sizeof(Update));
  }

  // Takes in the entries of another list, from the last.
  void merge(const SentEntries& other) {
    size_t mine = indices.size(), theirs = other.indices.size();
    indices.resize(mine + theirs);
    values.resize(mine + theirs);
    while (theirs > 0) {
      const size_t to = mine + theirs - 1;
      const bool is_mine = mine > 0 && indices[mine - 1] > other.indices[theirs - 1];
      const size_t from = is_mine ? --mine : --theirs;
      indices[to] = is_mine ? indices[from] : other.indices[from];
      values[to] = is_mine ? values[from] : other.values[from];
    }
  }
};

// Writes the entries of all ranges one behind the other, as far as there is room.
template <typename Update>
void write_entries(const SentList<Update>& out, const std::vector<SentEntries<Update>>& ranges,
                   const Context& context) {
  std::vector<int64_t> first(ranges.size() + 1);
  for (size_t r = 0; r < ranges.size(); ++r) first[r + 1] = first[r] + ranges[r].indices.size();
  *out.count = static_cast<int32_t>(first.back());
  context.parallel.run(ranges.size(), [&](int64_t r) {
    const int64_t to = std::min(first[r], out.room), count = std::min(first[r + 1], out.room) - to;
    std::copy_n(ranges[r].indices.begin(), count, out.indices + to);
    std::copy_n(ranges[r].values.begin(), count, out.values + to);
  });
}

}  // namespace zen
