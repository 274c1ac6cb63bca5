// What every CPU kernel runs with.
#pragma once

#include <cstdint>

#include "xla_ffi/cpu/isa.h"
#include "xla_ffi/cpu/parallel.h"

namespace zen {

// Less work than this is not worth waking a thread for.
constexpr int64_t kMinRangeBytes = 256 << 10;

struct Context {
  const Isa& isa;
  const Parallel& parallel;
  int64_t min_range_bytes = kMinRangeBytes;
};

}  // namespace zen
