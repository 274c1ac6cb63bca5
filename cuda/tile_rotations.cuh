// The rotations of the consecutive tiles that a block touches, counted from the first: hashed for each of their units,
// or once each.
#pragma once

#include <cstdint>

#include "cuda/common/hash.h"
#include "cuda/launch.cuh"

namespace zen::cuda {

struct HashedRotations {
  static constexpr bool kCostly = true;  // to look up one that nobody needs

  uint32_t first_tile;
  uint32_t n;
  uint32_t seed;

  __device__ uint32_t operator[](uint32_t tile) const { return tile_rotation(first_tile + tile, n, seed); }
};

class RotationTable {
 public:
  static constexpr bool kCostly = false;

  // Room for the tiles of `units` consecutive units. None for fewer than 8 servers: they have so many tiles that a
  // table would be large and save few hashes.
  static uint32_t room(int64_t n, int64_t units) { return n < 8 ? 0 : static_cast<uint32_t>(units / n + 2); }

  // Fills `table`, to be read after the next barrier.
  __device__ RotationTable(uint16_t* table, uint32_t tiles, const HashedRotations& rotations) : table_(table) {
    for (uint32_t i = threadIdx.x; i < tiles; i += kThreads) table[i] = static_cast<uint16_t>(rotations[i]);
  }

  __device__ uint32_t operator[](uint32_t tile) const { return table_[tile]; }

 private:
  const uint16_t* table_;
};

}  // namespace zen::cuda
