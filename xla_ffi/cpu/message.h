// Messages between workers, written from buckets of units and read back.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/problem.h"
#include "xla_ffi/cpu/context.h"

namespace zen {

// The parts of n messages, which follow one another in each message, each in whole words.
template <typename Integer, typename Byte>
struct MessageParts {
  Integer* head;       // [batch, n, head_words]
  Integer* positions;  // [batch, n, room], or [batch, room] if joined, or absent
  Byte* units;         // [batch, n, room, unit_bytes], or [batch, room, unit_bytes] if joined
};

using PartsToPack = MessageParts<const int32_t, const char>;
using UnpackedParts = MessageParts<int32_t, char>;

// Packs the head of each bucket and its first `capacity` entries; entries beyond counts [batch, n] get the position
// `beyond` and zeros. `messages` has one [batch, words] for each of the n buckets.
void pack(const MessageProblem& problem, const PartsToPack& parts, const int32_t* counts, int32_t beyond,
          const std::vector<uint32_t*>& messages, const Context& context);

// The inverse, from messages [batch, n, words] to buckets whose room is the capacity.
void unpack(const MessageProblem& problem, const uint32_t* messages, const UnpackedParts& parts,
            const Context& context);

// From messages with positions to one list [batch, room] of the first counts [batch, n] entries of each; what lies
// after them stays unchanged. Heads are left out.
void unpack_joined(const MessageProblem& problem, const uint32_t* messages, const int32_t* counts, int32_t* positions,
                   char* units, const Context& context);

}  // namespace zen
