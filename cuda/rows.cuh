// Rows as units: which rows of a chunk hold a non-zero, and copying rows.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

constexpr int64_t kRowChunkBytes = 64 << 10;
constexpr int64_t kMaxRowsPerChunk = 8192;
static_assert(kMaxRowsPerChunk / kBitsPerWord <= kThreads, "a thread holds one word of a chunk's row bitmap");

// Rows that one block takes: about kRowChunkBytes of them, and at least `least`.
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

// Sets bit r of `words` for each of the `count` rows from `rows` on that holds a non-zero. The lanes of a warp share
// one or several rows, 16 bytes each where the address allows it, and a ballot ORs what they saw. The words are zero
// before; a barrier must follow.
template <typename Bits>
__device__ void mark_nonzero_rows(const Bits* rows, int64_t count, int64_t width, uint32_t* words) {
  constexpr int kInFlight = 4;
  const bool aligned = is_aligned(rows) && width % Vector<Bits>::kSize == 0;
  const int64_t items = aligned ? width / Vector<Bits>::kSize : width;
  const int lanes = lanes_per_row(items);
  const int64_t segments = ceil_div(items, int64_t{lanes} * kInFlight);
  const int lane = lane_id() % lanes;
  const uint32_t sharers = (kFullWarp >> (kWarpSize - lanes)) << (lane_id() - lane);

  for (int64_t task_base = 0; task_base < count * segments; task_base += kThreads / lanes) {
    const int64_t task = task_base + threadIdx.x / lanes;
    const int64_t row = segments == 1 ? task : task / segments;
    const int64_t first = (task - row * segments) * lanes * kInFlight + lane;
    const int64_t limit = row < count ? width : 0;
    const Bits* const source = rows + row * width;
    bool nonzero = false;
    if (aligned) {
      Vector<Bits> vectors[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        vectors[i] = load_vector(source, (first + int64_t{i} * lanes) * Vector<Bits>::kSize, limit, true);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) nonzero |= nonzero_mask(vectors[i]) != 0;
    } else {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t item = first + int64_t{i} * lanes;
        nonzero |= item < limit && is_nonzero(source[item]);
      }
    }
    const bool any = (__ballot_sync(kFullWarp, nonzero) & sharers) != 0;
    if (any && lane == 0) atomicOr(words + row / kBitsPerWord, 1u << (row % kBitsPerWord));
  }
}

// Copies one row by the `lanes` lanes that share it, of which this thread is number `lane`.
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

// The same with zeros for a source.
template <typename Bits>
__device__ void zero_row(Bits* to, int64_t width, int lane, int lanes) {
  if (is_aligned(to) && width % Vector<Bits>::kSize == 0) {
    uint4* const vectors = reinterpret_cast<uint4*>(to);
    for (int64_t i = lane; i < width / Vector<Bits>::kSize; i += lanes) vectors[i] = make_uint4(0, 0, 0, 0);
  } else {
    for (int64_t i = lane; i < width; i += lanes) to[i] = 0;
  }
}

// Writes the offsets of a bitmap's set bits in order. Thread j holds word j and the number of set bits before it.
__device__ inline void expand_word(uint32_t word, uint32_t rank, uint16_t* offsets) {
  const int first = static_cast<int>(threadIdx.x) * static_cast<int>(kBitsPerWord);
  for (; word != 0; word &= word - 1)
    offsets[rank++] = static_cast<uint16_t>(first + __ffs(static_cast<int>(word)) - 1);
}

}  // namespace zen::cuda
