// Rows as units: which rows of a chunk hold a non-zero, and copying rows.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

constexpr int64_t kRowChunkBytes = 64 << 10;
constexpr int64_t kMaxRowsPerChunk = 8192;
static_assert(kMaxRowsPerChunk / kBitsPerWord <= kThreads, "a thread holds one word of a chunk's row bitmap");

// Rows that one block takes: about kRowChunkBytes in all, and at least `least` rows.
inline int64_t rows_per_chunk(int64_t width, int64_t element_bytes, int64_t least) {
  int64_t rows = kRowChunkBytes / (width * element_bytes);
  rows = rows < least ? least : rows;
  return rows > kMaxRowsPerChunk ? kMaxRowsPerChunk : rows;
}

// Lanes that share a row: enough for one item each, at most a warp.
ZEN_HOST_DEVICE int lanes_per_row(int64_t items) {
  int lanes = 1;
  while (lanes < kWarpSize && lanes < items) lanes *= 2;
  return lanes;
}

// What a lane of a warp loads from a row at once, and only once: 16 bytes, or an element.
template <typename Bits>
__device__ Vector<Bits> load_item(const Vector<Bits>* from) {
  return load_vector(from->at, 0, Vector<Bits>::kSize, true);
}
template <typename Bits>
__device__ Bits load_item(const Bits* from) {
  return *from;
}

// Sets bit r of `words` for every row r, of `count`, that holds a non-zero. The lanes of a warp share one row or
// several, and a ballot ORs what they saw. A lane has kInFlight items in flight: of one row or, where rows are narrow
// and have at most one item for each lane, of as many rows.
template <bool kNarrow, typename Item>
__device__ void mark_nonzero_items(const Item* rows, int count, int64_t items, uint32_t* words) {
  constexpr int kInFlight = 4;
  const int lanes = kNarrow ? lanes_per_row(items) : kWarpSize;
  const int lane = lane_id() % lanes;
  const uint32_t sharers = (kFullWarp >> (kWarpSize - lanes)) << (lane_id() - lane);
  const int at_once = kThreads / lanes;
  const int segments = kNarrow ? 1 : static_cast<int>(ceil_div(items, kWarpSize * kInFlight));
  const int row_step = kNarrow ? at_once : 0, item_step = kNarrow ? 0 : kWarpSize;

  for (int base = 0; base < count * segments; base += kNarrow ? kInFlight * at_once : at_once) {
    const int task = base + static_cast<int>(threadIdx.x) / lanes;
    const int first_row = task / segments;
    const int64_t first_item = int64_t{task - first_row * segments} * kWarpSize * kInFlight + lane;
    const Item* next = rows + first_row * items + first_item;
    Item loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i, next += row_step * items + item_step) {
      const bool exists = first_row + i * row_step < count && first_item + i * item_step < items;
      loaded[i] = exists ? load_item(next) : Item{};
    }
    bool nonzero = false;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      nonzero |= is_nonzero(loaded[i]);
      if (!kNarrow && i < kInFlight - 1) continue;
      const uint32_t row = first_row + i * row_step;
      nonzero = (__ballot_sync(kFullWarp, nonzero) & sharers) != 0;
      if (nonzero && lane == 0) atomicOr(words + row / kBitsPerWord, 1u << (row % kBitsPerWord));
      nonzero = false;
    }
  }
}

// The same for rows of `width` elements. The words must be zero before; a barrier must follow.
template <typename Bits>
__device__ void mark_nonzero_rows(const Bits* rows, int64_t count, int64_t width, uint32_t* words) {
  const auto mark = [&](const auto* items_of_rows, int64_t items) {
    if (items <= kWarpSize) {
      mark_nonzero_items<true>(items_of_rows, static_cast<int>(count), items, words);
    } else {
      mark_nonzero_items<false>(items_of_rows, static_cast<int>(count), items, words);
    }
  };
  if (is_aligned(rows) && width % Vector<Bits>::kSize == 0) {
    mark(reinterpret_cast<const Vector<Bits>*>(rows), width / Vector<Bits>::kSize);
  } else {
    mark(rows, width);
  }
}

// Copies one row with the `lanes` lanes that share it, of which this thread is number `lane`.
template <typename Bits>
__device__ void copy_row(Bits* to, const Bits* from, int64_t width, int lane, int lanes) {
  if (is_aligned(to) && is_aligned(from) && width % Vector<Bits>::kSize == 0) {
    uint4* const to_vectors = reinterpret_cast<uint4*>(to);
    const uint4* const from_vectors = reinterpret_cast<const uint4*>(from);
    for (int64_t i = lane; i < width / Vector<Bits>::kSize; i += lanes) to_vectors[i] = from_vectors[i];
  } else {
    for (int64_t i = lane; i < width; i += lanes) to[i] = from[i];
  }
}

// The same with zeros as the source.
template <typename Bits>
__device__ void zero_row(Bits* to, int64_t width, int lane, int lanes) {
  if (is_aligned(to) && width % Vector<Bits>::kSize == 0) {
    uint4* const vectors = reinterpret_cast<uint4*>(to);
    for (int64_t i = lane; i < width / Vector<Bits>::kSize; i += lanes) vectors[i] = make_uint4(0, 0, 0, 0);
  } else {
    for (int64_t i = lane; i < width; i += lanes) to[i] = 0;
  }
}

}  // namespace zen::cuda
