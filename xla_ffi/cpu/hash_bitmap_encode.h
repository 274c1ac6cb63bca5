// Hash bitmap encode: which units of a shard are non-zero, and their values.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// shard [batch, size, width] -> words [batch, words], values [batch, capacity, width], count [batch]. The count is
// exact and may exceed the capacity; values beyond it are unspecified; padding bits are 0.
template <typename Bits>
void hash_bitmap_encode(const EncodeProblem& problem, const Bits* shard, uint32_t* words, Bits* values, int32_t* count,
                        const Context& context);

}  // namespace zen
