// What every CPU kernel runs with.
#pragma once

#include <cstdint>
#include <functional>

#include "xla_ffi/cpu/isa.h"
#include "xla_ffi/cpu/parallel.h"

namespace zen {

// Less work than this is not worth waking a thread for.
constexpr int64_t kMinRangeBytes = 256 << 10;

struct Context {
  const Isa& isa;
  const Parallel& parallel;
  int64_t min_range_bytes = kMinRangeBytes;

  // Calls body(0) .. body(tasks - 1), which move `bytes` in all: on this thread alone if that is too little for two.
  // On cores that processes share, waiting for a helper may take longer than the work.
  void run(int64_t tasks, int64_t bytes, const std::function<void(int64_t)>& body) const {
    if (bytes < 2 * min_range_bytes) {
      Serial().run(tasks, body);
    } else {
      parallel.run(tasks, body);
    }
  }
};

}  // namespace zen
