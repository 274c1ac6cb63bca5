// What the kernels that partition single elements share: a chunk's non-zeros are listed in shared memory, and a listed
// element's tile and server are computed when they are needed.
#pragma once

#include <cstdint>

#include "cuda/common/divide.h"
#include "cuda/common/hash.h"
#include "cuda/partition_block.cuh"
#include "cuda/staged_chunk.cuh"
#include "cuda/tile_rotations.cuh"

namespace zen::cuda {

struct DenseParams : PartitionParams {
  SmallDivisor n;
  uint32_t table_room;  // tiles whose rotations a block for single elements may keep
};

// Where a unit belongs.
struct UnitPlace {
  uint32_t tile;
  uint32_t server;
};

// Where a chunk of consecutive units begins: in this tile, at this unit of it.
struct ChunkStart {
  uint32_t tile;
  uint32_t offset;

  __device__ ChunkStart(int64_t first_unit, uint32_t n)
      : tile(static_cast<uint32_t>(first_unit / n)),
        offset(static_cast<uint32_t>(first_unit - static_cast<int64_t>(tile) * n)) {}
};

// The listed units of a chunk.
template <typename Rotations>
class ChunkUnits {
 public:
  __device__ ChunkUnits(const SmallDivisor& n, const uint16_t* offsets, const ChunkStart& start,
                        const Rotations& rotations)
      : n_(n), offsets_(offsets), start_(start), rotations_(rotations) {}

  __device__ uint32_t first_tile() const { return start_.tile; }
  // Counted from the first.
  __device__ uint32_t tile(uint32_t j) const { return n_.quotient(start_.offset + offsets_[j]); }
  __device__ UnitPlace place(uint32_t j) const {
    const uint32_t unit = start_.offset + offsets_[j];
    const uint32_t tile = n_.quotient(unit);
    return {start_.tile + tile, server_in_tile(n_.remainder(unit, tile), rotations_[tile], n_.divisor)};
  }
  __device__ uint32_t server(uint32_t j) const { return place(j).server; }

 private:
  const SmallDivisor n_;
  const uint16_t* const offsets_;
  const ChunkStart start_;
  const Rotations rotations_;
};

// A chunk's two lists precede its elements in shared memory, which three blocks of a multiprocessor share. They have
// room for a tenth of the elements, or more if these are short; those of a denser chunk extend over its first elements,
// which are read again, from L2.
template <typename Bits>
constexpr int kListBytes = (70 << 10) - StagedChunk<Bits>::kPerBlock * static_cast<int>(sizeof(Bits));
template <typename Bits>
constexpr int kListUnits = kListBytes<Bits> / (2 * sizeof(uint16_t));

// A block's shared memory.
template <typename Bits>
struct ElementsShared {
  static_assert(StagedChunk<Bits>::kPerBlock <= SortShared::kMaxUnits, "counts of a chunk have 16 bits");

  SortShared lists;
  Bits* staged;      // [StagedChunk<Bits>::kPerBlock]
  uint16_t* table;   // [params.table_room]
  uint64_t* arrived; // [1]

  __host__ __device__ ElementsShared(SharedArena& arena, const DenseParams& params)
      : lists(arena, params.servers, kListUnits<Bits>),
        staged(arena.take_lines<Bits>(StagedChunk<Bits>::kPerBlock)),
        table(arena.take<uint16_t>(params.table_room)),
        arrived(arena.take<uint64_t>(1)) {}

  __device__ StagedChunk<Bits> chunk() const { return StagedChunk<Bits>(staged, arrived, lists.warp_totals); }
};

// A chunk's elements after they are listed.
template <typename Bits>
struct ListedElements {
  const Bits* source;  // of the chunk
  const Bits* staged;
  int covered;  // by the lists

  __device__ Bits operator[](int offset) const { return offset < covered ? source[offset] : staged[offset]; }
};

// Waits for the chunk, loaded from `source`, and lists its non-zeros, each warp those that it owns; other warps' may be
// used after a barrier.
template <typename Bits>
__device__ ListedElements<Bits> list_nonzeros(StagedChunk<Bits>* chunk, const Bits* source,
                                              ElementsShared<Bits>* shared) {
  chunk->find_nonzeros();
  SortShared& lists = shared->lists;
  lists.order = lists.offsets + chunk->nonzeros();
  const int beyond = static_cast<int>(chunk->nonzeros() * 2 * sizeof(uint16_t)) - kListBytes<Bits>;
  const int covered = beyond <= 0 ? 0 : static_cast<int>((beyond + sizeof(Bits) - 1) / sizeof(Bits));
  chunk->for_each_nonzero(
      [&](uint32_t rank, int offset) { lists.offsets[rank] = static_cast<uint16_t>(offset); });
  __syncwarp();
  return {source, shared->staged, covered};
}

// Calls use(rotations) for a chunk's tiles, with a table, readable after the next barrier, if there is room for one.
template <typename Use>
__device__ void with_rotations(const DenseParams& params, const ChunkStart& start, uint16_t* table, Use use) {
  const HashedRotations hashed = {start.tile, params.n.divisor, params.seed};
  if (params.table_room > 0) {
    use(RotationTable(table, params.table_room, hashed));
  } else {
    use(hashed);
  }
}

}  // namespace zen::cuda
