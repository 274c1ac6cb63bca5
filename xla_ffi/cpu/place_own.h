// A worker's own units, placed beside those that a server sent because others touched them.
#pragma once

#include <cstdint>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// Writes into x [batch, units, width] each entry of positions [batch, n, capacity], values [batch, n, capacity, width]
// and counts [batch, n] whose bit is clear in words [batch, n, words], times the reciprocal of the divisor, as
// aggregate() would.
template <typename T>
void place_own(const DecodeProblem& problem, const uint32_t* words, const int32_t* positions, const T* values,
               const int32_t* counts, int64_t divisor, uint32_t seed, T* x, const Context& context);

}  // namespace zen
