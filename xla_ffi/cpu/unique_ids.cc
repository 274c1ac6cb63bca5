#include "xla_ffi/cpu/unique_ids.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace zen {
namespace {

constexpr int kDigitBits = 8;
constexpr uint32_t kDigits = 1u << kDigitBits;

struct Entry {
  uint32_t key;  // the id with its sign flipped: unsigned, in the order of the ids
  uint32_t place;
};

uint32_t key_of(int32_t id) { return static_cast<uint32_t>(id) ^ 0x80000000u; }

// A radix sort from the lowest digit up, which skips digits that all keys share.
void sort_by_key(std::vector<Entry>& entries, std::vector<Entry>& spare) {
  uint32_t varying = 0;
  for (const Entry& entry : entries) varying |= entry.key ^ entries.front().key;
  for (int shift = 0; shift < 32; shift += kDigitBits) {
    const auto digit = [shift](const Entry& entry) { return entry.key >> shift & (kDigits - 1); };
    if ((varying >> shift & (kDigits - 1)) == 0) continue;
    std::array<uint32_t, kDigits> next{};
    for (const Entry& entry : entries) ++next[digit(entry)];
    uint32_t begin = 0;
    for (uint32_t& place : next) begin += std::exchange(place, begin);
    for (const Entry& entry : entries) spare[next[digit(entry)]++] = entry;
    entries.swap(spare);
  }
}

// Returns how many distinct ids lie below `fill`.
int32_t unique_of_item(int64_t size, const int32_t* ids, int32_t fill, int32_t* unique, int32_t* slots) {
  std::vector<Entry> entries(size), spare(size);
  for (int64_t i = 0; i < size; ++i) entries[i] = {key_of(ids[i]), static_cast<uint32_t>(i)};
  sort_by_key(entries, spare);
  int32_t distinct = 0;
  for (int64_t i = 0; i < size; ++i) {
    const Entry entry = entries[i];
    if (i == 0 || entry.key != entries[i - 1].key) unique[distinct++] = ids[entry.place];
    slots[entry.place] = distinct - 1;
  }
  std::fill(unique + distinct, unique + size, fill);
  return distinct > 0 && unique[distinct - 1] == fill ? distinct - 1 : distinct;
}

}  // namespace

void unique_ids(const UniqueIdsProblem& p, const int32_t* ids, int32_t fill, int32_t* unique, int32_t* slots,
                int32_t* count, const Context& context) {
  context.parallel.run(p.batch, [&](int64_t b) {
    count[b] = unique_of_item(p.size, ids + b * p.size, fill, unique + b * p.size, slots + b * p.size);
  });
}

}  // namespace zen
