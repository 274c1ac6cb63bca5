// What error feedback sends: its list, and the part of a total that has too many bits for the wire; the rest stays.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/common/keys.h"

namespace zen {

// What is sent, as a list by ascending index and without zeros: indices and values [batch, room], and how many there
// are [batch]. Entries beyond the room are counted but left out.
template <typename Update>
struct SentList {
  int32_t* indices;
  Update* values;
  int32_t* count;
  int64_t room;

  // XLA passes null for an empty array too, so the array that a list replaces does not tell.
  ZEN_HOST_DEVICE bool is_wanted() const { return count != nullptr; }
};

// A float's bits without the `kDropped` lowest, rounded to nearest even.
template <int kDropped>
ZEN_HOST_DEVICE uint32_t round_bits(uint32_t bits) {
  constexpr uint32_t kHalf = (1u << (kDropped - 1)) - 1;
  return (bits + kHalf + (bits >> kDropped & 1)) & ~((1u << kDropped) - 1);
}

// The part of a total that a 16-bit float holds: never infinite if the total is finite, and zero below `least`.
// `max` and `least` are the bits of the largest and the smallest magnitude that may be sent.
template <int kDropped>
ZEN_HOST_DEVICE float sent_part(float total, uint32_t max, uint32_t least) {
  uint32_t magnitude = key_of(bits_of(total));
  if (magnitude >= kInfinity<float>) return total;
  const uint32_t sign = bits_of(total) ^ magnitude;
  magnitude = round_bits<kDropped>(magnitude > max ? max : magnitude);
  const uint32_t bits = magnitude < least ? sign : sign | magnitude;
  memcpy(&total, &bits, sizeof(bits));
  return total;
}

ZEN_HOST_DEVICE float sent_part_of_float16(float total) { return sent_part<13>(total, 0x477fe000u, 0x38800000u); }
ZEN_HOST_DEVICE float sent_part_of_bfloat16(float total) { return sent_part<16>(total, 0x7f7f0000u, 0); }

}  // namespace zen
