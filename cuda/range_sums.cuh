// How a block sums a range of a shard: it adds the workers' addends, in worker order, in shared memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/block_scan.cuh"
#include "cuda/common/bits.h"
#include "cuda/common/divide.h"
#include "cuda/common/keys.h"
#include "cuda/common/problem.h"
#include "cuda/look_back.cuh"
#include "cuda/packs.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// A block's room for sums: a range of positions, times a range of columns if units are rows.
constexpr int32_t kSumBytes = 64 << 10;

template <typename Dtype>
constexpr int32_t kSums = kSumBytes / static_cast<int32_t>(sizeof(typename Dtype::Sum));

// Blocks for each multiprocessor: packs of more than a register make them need more registers.
template <typename Dtype, int kPackSize>
constexpr int kSumBlocks = sizeof(Pack<Dtype, kPackSize>) <= 4 ? 3 : 2;

// Ranges that are surely summed at once: two blocks for each multiprocessor of an H200. A constant, because scratch is
// sized where there may be no GPU.
constexpr int64_t kRangesAtOnce = 264;

// Workers whose entries are looked up at once.
constexpr int32_t kWorkersAtOnce = kThreads / 4;

// Addends of one element that a thread holds at once: as registers allow, like the 2 of others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kElementsInFlight = 3;
#else
constexpr int kElementsInFlight = 4;
#endif

// The workers' messages and how their sum is cut into ranges, one for each block.
template <typename Dtype>
struct SumParams {
  AggregateProblem problem;
  typename Dtype::Sum reciprocal;  // of the divisor: sums are multiplied, as XLA compiles the division of pmean
  float row_share;                 // of the shard
  uint32_t deviation;  // of an entry's index from what its position suggests, which hashed positions rarely exceed
  int32_t rows;        // positions of a range: a multiple of 32, or a smaller power of two
  SmallDivisor packs;  // of a range's row
  int32_t row_ranges;  // of one batch item
  int32_t column_ranges;
  const int32_t* positions;
  const void* values;
  const int32_t* counts;
};

// Positions of a range: as many as a block has room for sums of `sum_bytes` each, but fewer where that would leave
// multiprocessors idle, even if only while the last ranges are summed. A larger batch has no fewer.
inline int64_t rows_per_range(int64_t size, int64_t width, int64_t sum_bytes, int64_t batch = 1) {
  const int64_t sums = kSumBytes / sum_bytes;
  int64_t rows = sums / std::min(width, sums);
  if (rows >= kBitsPerWord) {
    const int64_t words = ceil_div(size, kBitsPerWord);
    const int64_t waves = ceil_div(batch * words, kRangesAtOnce * (rows / kBitsPerWord));
    const int64_t ranges = ceil_div(words, ceil_div(batch * words, kRangesAtOnce * waves));
    return ceil_div(words, ranges) * kBitsPerWord;
  }
  while (rows & (rows - 1)) rows &= rows - 1;
  return rows;
}

template <typename Dtype, int kPackSize>
SumParams<Dtype> cut_into_ranges(const AggregateProblem& problem, int64_t divisor, const int32_t* d_positions,
                                 const void* d_values, const int32_t* d_counts) {
  const int64_t columns = std::min<int64_t>(problem.width, kSums<Dtype>);
  const int64_t rows = rows_per_range(problem.size, problem.width, sizeof(typename Dtype::Sum), problem.batch);
  SumParams<Dtype> params;
  params.problem = problem;
  params.reciprocal = typename Dtype::Sum{1} / static_cast<typename Dtype::Sum>(divisor);
  params.row_share = 1 / static_cast<float>(problem.size);
  // Four times the standard deviation in the middle of as many random positions.
  params.deviation = static_cast<uint32_t>(2 * std::sqrt(static_cast<double>(problem.capacity)));
  params.rows = static_cast<int32_t>(rows);
  params.packs = SmallDivisor(static_cast<uint32_t>(columns / kPackSize));
  params.row_ranges = static_cast<int32_t>(ceil_div(problem.size, rows));
  params.column_ranges = static_cast<int32_t>(ceil_div(problem.width, columns));
  params.positions = d_positions;
  params.values = d_values;
  params.counts = d_counts;
  return params;
}

// The first of `count` ascending positions that is not below `bound`. The lanes of a group, 2^lane_bits of at least 2,
// search for it together, each at a different place, and all lanes of a warp call this. The first places are within
// `deviation` of the `expected` result; wherever the result is, they narrow the search.
__device__ inline uint32_t lower_bound(const LaneGroup& group, int lane_bits, const int32_t* positions,
                                       uint32_t count, int64_t bound, uint32_t expected, uint32_t deviation) {
  uint32_t low = 0;
  uint32_t first = expected - min(expected, deviation);
  uint32_t stride = (2 * deviation >> lane_bits) + 1;
  while (__any_sync(kFullWarp, count > 0)) {
    const uint32_t probe = first + group.lane * stride;
    const int below = __popc(group.ballot(probe < count && positions[low + probe] < bound));
    const uint32_t passed = below == 0 ? 0 : first + (below - 1) * stride + 1;
    const uint32_t ahead = below == 0 ? first : below == group.lanes ? count : stride - 1;
    low += passed;
    count = min(ahead, count - passed);
    first = count >> lane_bits;
    stride = first + 1;
  }
  return low;
}

// The sums of one range, which is a run of consecutive elements of the shard: whole rows, or a part of one.
template <typename Dtype, int kPackSize>
class RangeSums {
 public:
  using Stored = typename Dtype::Stored;
  using Sum = typename Dtype::Sum;
  using Params = SumParams<Dtype>;

  __host__ __device__ explicit RangeSums(SharedArena& arena)
      : sums_(arena.take<Sum>(kSums<Dtype>)),
        range_(arena.take<Range>(1)),
        found_(arena.take<Found>(kWorkersAtOnce)),
        parts_(arena.take<Part>(kWorkersAtOnce + 1)) {}

  // Makes all sums zero. Apart from sum(), so that a block does it while it waits to know its range.
  __device__ void clear() const {
    auto* const vectors = reinterpret_cast<uint4*>(sums_);
#pragma unroll
    for (int i = 0; i < kSumBytes / kVectorBytes; i += kThreads) vectors[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
  }

  // Adds the range of `row_range` and `column_range` of a batch item to the cleared sums. Ends with a barrier.
  __device__ void sum(const Params& params, int64_t batch, int64_t row_range, int64_t column_range) {
    const AggregateProblem& problem = params.problem;
    if (threadIdx.x == 0) {
      const uint32_t columns = params.packs.divisor * kPackSize;
      range_->first_row = row_range * params.rows;
      range_->first_column = column_range * columns;
      range_->rows = static_cast<uint32_t>(min(problem.size - range_->first_row, int64_t{params.rows}));
      range_->columns = static_cast<uint32_t>(min(problem.width - range_->first_column, int64_t{columns}));
    }
    __syncthreads();
    const auto n = static_cast<int32_t>(problem.n);
    for (int32_t worker = 0; worker < n; worker += kWorkersAtOnce) {
      const int32_t workers = min(n - worker, kWorkersAtOnce);
      const uint32_t parts = find_entries(params, batch * problem.n + worker, workers);
      if (parts == 0) continue;
      if (params.packs.divisor == 1) {
        add_in_order<true>(params, parts);
      } else {
        add_in_order<false>(params, parts);
      }
    }
  }

  // Elements first .. first + kSize - 1 of the range, divided and rounded; `first` is a multiple of kSize. Those beyond
  // the tensor, in the rows that the last range lacks, are zero.
  template <int kSize>
  __device__ Pack<Dtype, kSize> means(uint32_t first, Sum reciprocal) const {
    const FloatPack<Sum, kSize> sums = pack_at<kSize>(sums_ + first);
    Pack<Dtype, kSize> pack;
#pragma unroll
    for (int k = 0; k < kSize; ++k) pack.at[k] = Dtype::round(sums.at[k] * reciprocal);
    return pack;
  }

  // The same, but never -0.0.
  template <int kSize>
  __device__ Pack<Dtype, kSize> results(uint32_t first, Sum reciprocal) const {
    Pack<Dtype, kSize> pack = means<kSize>(first, reciprocal);
    BitsOf<Stored> bits[kSize];
    memcpy(bits, &pack, sizeof(pack));
#pragma unroll
    for (auto& each : bits) each = without_negative_zero(each);
    memcpy(&pack, bits, sizeof(pack));
    return pack;
  }

  // Bit k is set iff element first + k of the range has a non-zero mean; `first` is a multiple of 32, a different one
  // in each lane. The lanes begin at different vectors of their elements, so that these lie in different banks.
  __device__ uint32_t nonzero_word(uint32_t first, Sum reciprocal) const {
    constexpr int kSize = kVectorBytes / static_cast<int>(sizeof(Sum));
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kBitsPerWord; i += kSize) {
      const uint32_t shift = i ^ lane_id() * kSize % kBitsPerWord;
      const Pack<Dtype, kSize> pack = means<kSize>(first + shift, reciprocal);
      BitsOf<Stored> bits[kSize];
      memcpy(bits, &pack, sizeof(pack));
      uint32_t mask = 0;
#pragma unroll
      for (int k = 0; k < kSize; ++k) mask |= static_cast<uint32_t>(is_nonzero(bits[k])) << k;
      word |= mask << shift;
    }
    return word;
  }

  __device__ int64_t first_row() const { return range_->first_row; }
  __device__ int64_t first_column() const { return range_->first_column; }
  // Elements of the tensor in this range, and their packs.
  __device__ uint32_t size() const { return range_->rows * range_->columns; }
  __device__ uint32_t packs() const { return size() / kPackSize; }

 private:
  // In shared memory, because it would take too many registers.
  struct Range {
    int64_t first_row;
    int64_t first_column;
    uint32_t rows;  // of the tensor
    uint32_t columns;
    uint32_t parts;
  };

  // A worker's entries in the range.
  struct alignas(8) Found {
    uint32_t first;
    uint32_t end;
  };

  // What one worker adds to the range: addends first .. end - 1 of all. An addend is a pack of an entry, and that at
  // `first` begins at values[0]: the entries are consecutive, and a range of less than whole rows has only one of them.
  // `first` is a multiple of a warp's lanes, so that a warp takes addends of only one part at once.
  struct alignas(16) Part {
    const int32_t* positions;
    const Stored* values;
    uint32_t first;
    uint32_t end;
  };

  // None of it is examined before its turn, so that loading it stalls nothing.
  struct Addend {
    uint32_t part;
    int32_t position;
    uint32_t pack;  // of the row
    Pack<Dtype, kPackSize> values;
  };

  // Lists the parts of the workers that have any, in order; returns their number. Ends with a barrier.
  __device__ uint32_t find_entries(const Params& params, int64_t first_bucket, int32_t workers) {
    const AggregateProblem& problem = params.problem;
    int lane_bits = 4;  // a warp finds both the begin and the end of a worker's entries
    while (2 * workers << lane_bits > kThreads) --lane_bits;
    const LaneGroup group(1 << lane_bits);
    const int32_t sought = static_cast<int32_t>(threadIdx.x) >> lane_bits;
    const bool wanted = sought < 2 * workers;
    const int64_t bucket = first_bucket + (wanted ? sought / 2 : 0);
    const int32_t count = wanted ? params.counts[bucket] : 0;
    const auto held = static_cast<uint32_t>(count < 0 ? 0 : min(int64_t{count}, problem.capacity));
    const int64_t bound = range_->first_row + (sought % 2 ? range_->rows : 0);
    const float expected = static_cast<float>(bound) * params.row_share * static_cast<float>(held);
    const int32_t* const positions = computed_once(params.positions + bucket * problem.capacity);
    const uint32_t found = lower_bound(group, lane_bits, positions, held, bound, static_cast<uint32_t>(expected),
                                       params.deviation);
    if (wanted && group.lane == 0) (sought % 2 ? found_[sought / 2].end : found_[sought / 2].first) = found;
    __syncthreads();
    if (warp_id() == 0) list_parts(params, first_bucket, workers);
    __syncthreads();
    return range_->parts;
  }

  // Lists the parts of the found entries, and after them one without addends that has no end. One warp calls this.
  __device__ void list_parts(const Params& params, int64_t first_bucket, int32_t workers) const {
    const auto rows = static_cast<uint32_t>(params.rows);
    uint32_t parts = 0, slices = 0;
#pragma unroll 1
    for (int32_t base = 0; base < workers; base += kWarpSize) {
      const int32_t worker = base + lane_id();
      const Found found = worker < workers ? found_[worker] : Found{0, 0};
      // Positions out of order may name more entries than rows, or none.
      const uint32_t entries = found.first < found.end ? min(found.end - found.first, rows) : 0;
      const uint32_t addends = entries * (range_->columns / kPackSize);
      const uint32_t nonempty = __ballot_sync(kFullWarp, entries > 0);
      const uint32_t own_slices = (addends + kWarpSize - 1) / kWarpSize;
      const uint32_t slices_up_to = slices + warp_inclusive_sum(own_slices);
      if (entries > 0) {
        const int64_t entry = (first_bucket + worker) * params.problem.capacity + found.first;
        const int64_t element = entry * params.problem.width + range_->first_column;
        const uint32_t first = (slices_up_to - own_slices) * kWarpSize;
        parts_[parts + __popc(nonempty & ((1u << lane_id()) - 1))] = {
            params.positions + entry, static_cast<const Stored*>(params.values) + element, first, first + addends};
      }
      parts += __popc(nonempty);
      slices = __shfl_sync(kFullWarp, slices_up_to, kWarpSize - 1);
    }
    if (lane_id() == 0) {
      parts_[parts] = {nullptr, nullptr, 0, ~0u};
      range_->parts = parts;
    }
  }

  // A worker's positions are distinct, so its addends go to different sums and need no atomics; a barrier after each
  // part keeps the workers' order. The warps take the addends in turn, 32 at once, so that short parts keep only some
  // of them busy: the others wait at the next barriers, with addends of the next parts in flight.
  template <bool kOnePackRows>
  __device__ void add_in_order(const Params& params, uint32_t parts) {
    constexpr int kInFlight = kOnePackRows && kPackSize == 1 ? kElementsInFlight : 2;
    const auto first_row = static_cast<uint32_t>(range_->first_row);
    const uint32_t rows = range_->rows;
    uint32_t next = warp_id() * kWarpSize;
    uint32_t part = 0;
    const auto load_next = [&](Addend& addend) {
      while (next >= parts_[part].end) ++part;
      const uint32_t i = next + lane_id();
      addend.part = part;
      addend.position = -1;  // in no range
      const Part& from = parts_[part];
      if (i < from.end && part < parts) load<kOnePackRows>(params, from, i - from.first, addend);
      next += kThreads;
    };
    Addend addends[kInFlight];
#pragma unroll
    for (Addend& addend : addends) load_next(addend);
    for (uint32_t turn = 0;;) {
#pragma unroll
      for (Addend& addend : addends) {
        for (; turn < addend.part; ++turn) __syncthreads();
        if (turn == parts) return;
        // Positions out of order may lie outside the range.
        const uint32_t row = static_cast<uint32_t>(addend.position) - first_row;
        if (row < rows) add(kOnePackRows ? row : row * params.packs.divisor + addend.pack, addend.values);
        load_next(addend);
      }
    }
  }

  // If a row is one pack, nothing needs dividing.
  template <bool kOnePackRows>
  __device__ static void load(const Params& params, const Part& part, uint32_t i, Addend& addend) {
    const uint32_t entry = kOnePackRows ? i : params.packs.quotient(i);
    addend.position = __ldcs(part.positions + entry);
    addend.pack = kOnePackRows ? 0 : params.packs.remainder(i, entry);
    const Stored* const from = part.values + i * kPackSize;
    if constexpr (kPackSize == 1) {
      addend.values.at[0] = __ldcs(from);
    } else {
      const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
      memcpy(&addend.values, &raw, sizeof(raw));
    }
  }

  __device__ void add(uint32_t slot, const Pack<Dtype, kPackSize>& values) {
    auto& to = pack_at<kPackSize>(sums_ + slot * kPackSize);
    FloatPack<Sum, kPackSize> sums = to;
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) sums.at[k] += Dtype::widen(values.at[k]);
    to = sums;
  }

  Sum* sums_;
  Range* range_;  // [1]
  Found* found_;  // [kWorkersAtOnce]
  Part* parts_;   // [kWorkersAtOnce + 1]
};

}  // namespace zen::cuda
