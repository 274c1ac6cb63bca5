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
  Integer* positions;  // [batch, n, room], or [batch, room] if joined, or nowhere
  Byte* units;         // [batch, n, room, unit_bytes], or [batch, room, unit_bytes] if joined
};

using PartsToPack = MessageParts<const int32_t, const char>;
using UnpackedParts = MessageParts<int32_t, char>;

// Of each bucket the head and its first `capacity` entries; beyond counts [batch, n] stand the position `beyond` and
// zeros. `messages` has a [batch, words] for each of the n buckets.
void pack(const MessageProblem& problem, const PartsToPack& parts, const int32_t* counts, int32_t beyond,
          const std::vector<uint32_t*>& messages, const Context& context);

// The inverse, from messages [batch, n, words] to buckets whose room is the capacity.
void unpack(const MessageProblem& problem, const uint32_t* messages, const UnpackedParts& parts,
            const Context& context);

// From messages with positions to one list [batch, room] of the first counts [batch, n] entries of each; what lies
// behind them stays as it was. Heads are left out.
void unpack_joined(const MessageProblem& problem, const uint32_t* messages, const int32_t* counts, int32_t* positions,
                   char* units, const Context& context);

}  // namespace zen
