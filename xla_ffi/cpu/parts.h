// Parts of messages, which are sent one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/problem.h"

namespace zen {

// Copies the elements of each row [batch, size] from start [batch] on, or the last ones, into its part [batch, part].
void take_part(const PartProblem& problem, const int32_t* start, const std::vector<const char*>& rows,
               const std::vector<char*>& parts);

// The inverse, into rows [batch, n, size], whose other elements stay unchanged; and where the next part starts and
// whether there is one, both [batch].
void place_part(const PartProblem& problem, const int32_t* start, const std::vector<const char*>& parts, char* rows,
                int32_t* next, bool* more);

}  // namespace zen
