// Hash bitmap decode: the dense tensor from all servers' bitmaps and values.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// words [batch, n, words], values [batch, n, capacity, width] -> out [batch, units, width], every element written once.
template <typename Bits>
void hash_bitmap_decode(const DecodeProblem& problem, const uint32_t* words, const Bits* values, uint32_t seed,
                        Bits* out, const Context& context);

}  // namespace zen
