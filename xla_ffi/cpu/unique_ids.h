// The distinct ids in a list.
#pragma once

#include <cstdint>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// ids [batch, size], none above `fill` -> unique [batch, size], the distinct ids ascending and padded with `fill`;
// slots [batch, size], where in `unique` each id is; count [batch], how many distinct ids lie below `fill`.
void unique_ids(const UniqueIdsProblem& problem, const int32_t* ids, int32_t fill, int32_t* unique, int32_t* slots,
                int32_t* count, const Context& context);

}  // namespace zen
