#include "xla_ffi/cpu/parts.h"

#include <algorithm>
#include <cstring>

namespace zen {
namespace {

// No start leads beyond a row.
int64_t bytes_before(const PartProblem& p, int32_t start) {
  return std::clamp<int64_t>(start, 0, p.size - p.part) * p.item_bytes;
}

}  // namespace

void take_part(const PartProblem& p, const int32_t* start, const std::vector<const char*>& rows,
               const std::vector<char*>& parts) {
  const int64_t row_bytes = p.size * p.item_bytes, part_bytes = p.part * p.item_bytes;
  for (int64_t item = 0; item < p.batch; ++item) {
    const int64_t before = item * row_bytes + bytes_before(p, start[item]);
    for (int64_t row = 0; row < p.n; ++row) {
      std::memcpy(parts[row] + item * part_bytes, rows[row] + before, part_bytes);
    }
  }
}

void place_part(const PartProblem& p, const int32_t* start, const std::vector<const char*>& parts, char* rows,
                int32_t* next, bool* more) {
  const int64_t row_bytes = p.size * p.item_bytes, part_bytes = p.part * p.item_bytes;
  for (int64_t item = 0; item < p.batch; ++item) {
    for (int64_t row = 0; row < p.n; ++row) {
      char* const to = rows + (item * p.n + row) * row_bytes + bytes_before(p, start[item]);
      std::memcpy(to, parts[row] + item * part_bytes, part_bytes);
    }
    more[item] = start[item] < p.size - p.part;
    next[item] = static_cast<int32_t>(start[item] + p.part);
  }
}

}  // namespace zen
