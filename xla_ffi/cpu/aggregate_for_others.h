// What each worker lacks of a server's shard: the sums of the units that other workers sent.
#pragma once

#include <cstdint>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// From positions [batch, n, capacity], values [batch, n, capacity, width] and counts [batch, n], the first p.room units
// for each worker and their sums as aggregate() makes them: words [batch, n, words of p.size], units [batch, n, room,
// width] and held [batch, n]; and how many units of the shard are non-zero [batch].
template <typename T>
void aggregate_for_others(const AggregateEncodeProblem& problem, const int32_t* positions, const T* values,
                          const int32_t* counts, int64_t divisor, uint32_t* words, T* units, int32_t* held,
                          int32_t* nonzero, const Context& context);

}  // namespace zen
