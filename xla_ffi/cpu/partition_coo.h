// Partition of a gradient given as a list of its non-zero elements.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// indices [batch, K], ascending, values [batch, K] and their number [batch] (at most K are read) -> what partition()
// makes of the dense gradient: positions [batch, n, capacity], values [batch, n, capacity], counts [batch, n].
// `problem` has K units and a width of 1.
template <typename Bits>
void partition_coo(const PartitionProblem& problem, const int32_t* indices, const Bits* values, const int32_t* count,
                   uint32_t seed, int32_t* positions, Bits* bucket_values, int32_t* counts, const Context& context);

}  // namespace zen
