// Partition: every server's bucket of the non-zero units of x.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// x [batch, units, width] -> positions [batch, n, capacity], values [batch, n, capacity, width], counts [batch, n].
// Buckets list their units by ascending position; counts are exact and may exceed the capacity; entries beyond a count
// are unspecified. Bits is the unsigned integer as wide as the element: uint16_t, uint32_t or uint64_t.
template <typename Bits>
void partition(const PartitionProblem& problem, const Bits* x, uint32_t seed, int32_t* positions, Bits* values,
               int32_t* counts, const Context& context);

}  // namespace zen
