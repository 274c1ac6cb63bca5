// Cuts the work of a call into tasks: batch items first, then ranges of one item.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

struct Range {
  int64_t begin;
  int64_t end;
};

// How many ranges to cut each of `batch` items of `bytes` into, given `per_thread` ranges for a thread to claim.
inline int64_t ranges_per_item(int64_t batch, int64_t bytes, int64_t per_thread, const Context& context) {
  const int64_t threads = context.parallel.threads();
  if (threads == 1 || batch >= 4 * threads || batch % threads == 0) return 1;
  return std::max<int64_t>(1, std::min(threads * per_thread, bytes / context.min_range_bytes));
}

// Range `index` of `ranges` over [0, size), with bounds at multiples of `grain`.
inline Range range_of(int64_t index, int64_t ranges, int64_t size, int64_t grain) {
  const int64_t step = ceil_div(ceil_div(size, grain), ranges) * grain;
  return {std::min(size, index * step), std::min(size, (index + 1) * step)};
}

}  // namespace zen
