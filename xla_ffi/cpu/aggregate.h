// Aggregate: a server's shard, summed over the messages of all workers.
#pragma once

#include <cstdint>

#include "cuda/common/float16.h"
#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// positions [batch, n, capacity], values [batch, n, capacity, width], counts [batch, n] -> shard [batch, size, width].
// Each element is +0 plus the values of workers 0 .. n-1 in this order, times 1 / divisor, rounded once. T is float,
// double, Float16 or BFloat16; the last two sum in float.
template <typename T>
void aggregate(const AggregateProblem& problem, const int32_t* positions, const T* values, const int32_t* counts,
               int64_t divisor, T* shard, const Context& context);

}  // namespace zen
