// Aggregate and hash bitmap encode in one: the shard between the two never leaves the cache.
#pragma once

#include <cstdint>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// Bitwise the same as aggregate() and then hash_bitmap_encode(): words [batch, ceil(size / 32)],
// units [batch, room, width], count [batch].
template <typename T>
void aggregate_encode(const AggregateEncodeProblem& problem, const int32_t* positions, const T* values,
                      const int32_t* counts, int64_t divisor, uint32_t* words, T* units, int32_t* count,
                      const Context& context);

}  // namespace zen
