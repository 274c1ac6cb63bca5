// Hierarchical hashing: the paper's Algorithm 1.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// indices [batch, indices] -> memory [batch, n, r1 + r2], counts [batch, n], overflow [batch]. Indices equal to
// kEmptySlot are skipped. Each goes to partition h0, to the first free one of its k slots h1 .. hk there, or else to
// the partition's serial memory. counts is of all indices sent to a partition, overflow of those that found no room.
void hierarchical_hash(const HierarchicalHashProblem& problem, const uint32_t* indices, uint32_t seed,
                       uint32_t* memory, int32_t* counts, int32_t* overflow, const Context& context);

}  // namespace zen
