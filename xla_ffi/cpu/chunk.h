// The chunk of units that a scan lists before its non-zeros are dealt out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "xla_ffi/cpu/isa.h"

namespace zen {

// Chunks cover whole 64-bit masks.
constexpr int64_t kChunkGrain = 64;
constexpr int64_t kChunkBytes = 8 << 10;

inline int64_t chunk_units(int64_t unit_bytes) {
  if (unit_bytes == 0) return kChunkUnits;
  return std::clamp(kChunkBytes / unit_bytes / kChunkGrain * kChunkGrain, kChunkGrain, kChunkUnits);
}

// Where scan() and route() write their results.
struct alignas(64) ChunkLists {
  uint64_t masks[kChunkUnits / kChunkGrain];
  uint16_t units[kChunkUnits + kListSlack];
  int32_t tiles[kChunkUnits + kListSlack];
  uint32_t servers[kChunkUnits + kListSlack];
};

}  // namespace zen
