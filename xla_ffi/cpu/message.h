// Messages between workers, written from buckets of units and read again.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// The parts of n messages, which follow one another in each, every one of whole words.
template <typename Integer, typename Byte>
struct MessageParts {
  Integer* head;       // [batch, n, head_words]
  Integer* positions;  // [batch, n, room], or nowhere
  Byte* units;         // [batch, n, room, unit_bytes]
};

using PartsToPack = MessageParts<const int32_t, const char>;
using UnpackedParts = MessageParts<int32_t, char>;

// Of each bucket the head and its first `capacity` entries; those beyond counts [batch, n] become zeros. `messages` has
// a [batch, words] for each of the n buckets.
void pack(const MessageProblem& problem, const PartsToPack& parts, const int32_t* counts,
          const std::vector<uint32_t*>& messages, const Context& context);

// The inverse, from messages [batch, n, words] to parts whose room is the capacity.
void unpack(const MessageProblem& problem, const uint32_t* messages, const UnpackedParts& parts,
            const Context& context);

}  // namespace zen
