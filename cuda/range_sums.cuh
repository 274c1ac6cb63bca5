// How a block sums a range of a shard: it adds the workers' addends, in worker order, in shared memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cuda/block_scan.cuh"
#include "cuda/common/bits.h"
#include "cuda/common/divide.h"
#include "cuda/common/problem.h"
#include "cuda/look_back.cuh"
#include "cuda/packs.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {

// A block's room for sums: a range of positions, times a range of columns if units are rows.
constexpr int32_t kSumBytes = 64 << 10;

template <typename Dtype>
constexpr int32_t kSums = kSumBytes / static_cast<int32_t>(sizeof(typename Dtype::Sum));

// Ranges that are summed at once: two blocks for each multiprocessor of an H200. A constant, because scratch is sized
// where there may be no GPU.
constexpr int64_t kRangesAtOnce = 264;

// Workers whose entries are looked up at once.
constexpr int32_t kWorkersAtOnce = kThreads / 2;

// The workers' messages and how their sum is cut into ranges, one for each block.
struct SumParams {
  AggregateProblem problem;
  int64_t divisor;
  int32_t rows;        // positions of a range: a multiple of 32, or a smaller power of two
  SmallDivisor packs;  // of a range's row
  int64_t row_ranges;  // of one batch item
  int64_t column_ranges;
  const int32_t* positions;
  const void* values;
  const int32_t* counts;
};

// Positions of a range: as many as a block has room for sums of `sum_bytes` each, but fewer where that would leave
// multiprocessors idle, even if only while the last ranges are summed.
inline int64_t rows_per_range(int64_t size, int64_t width, int64_t sum_bytes) {
  const int64_t sums = kSumBytes / sum_bytes;
  int64_t rows = sums / std::min(width, sums);
  if (rows >= kBitsPerWord) {
    const int64_t words = ceil_div(size, kBitsPerWord);
    const int64_t waves = ceil_div(words, kRangesAtOnce * (rows / kBitsPerWord));
    return ceil_div(words, kRangesAtOnce * waves) * kBitsPerWord;
  }
  while (rows & (rows - 1)) rows &= rows - 1;
  return rows;
}

template <typename Dtype, int kPackSize>
SumParams cut_into_ranges(const AggregateProblem& problem, int64_t divisor, const int32_t* d_positions,
                          const void* d_values, const int32_t* d_counts) {
  const int64_t columns = std::min<int64_t>(problem.width, kSums<Dtype>);
  const int64_t rows = rows_per_range(problem.size, problem.width, sizeof(typename Dtype::Sum));
  SumParams params;
  params.problem = problem;
  params.divisor = divisor;
  params.rows = static_cast<int32_t>(rows);
  params.packs = SmallDivisor(static_cast<uint32_t>(columns / kPackSize));
  params.row_ranges = ceil_div(problem.size, rows);
  params.column_ranges = ceil_div(problem.width, columns);
  params.positions = d_positions;
  params.values = d_values;
  params.counts = d_counts;
  return params;
}

// The first of `count` ascending positions that is not below `bound`. The lanes of a group search for it together, each
// at a different place, and all lanes of a warp call this.
__device__ inline uint32_t lower_bound(const LookBackGroup& group, const int32_t* positions, uint32_t count,
                                       int64_t bound) {
  uint32_t low = 0;
  while (__any_sync(kFullWarp, count > 0)) {
    const uint32_t stride = count / (group.lanes + 1) + 1;
    const uint32_t probe = (group.lane + 1) * stride - 1;
    const uint32_t below = __popc(group.ballot(probe < count && positions[low + probe] < bound));
    low += below * stride;
    count = min(stride - 1, count - below * stride);
  }
  return low;
}

// The sums of one range.
template <typename Dtype, int kPackSize>
class RangeSums {
 public:
  using Stored = typename Dtype::Stored;
  using Sum = typename Dtype::Sum;
  using StoredPack = Pack<Dtype, kPackSize>;

  __host__ __device__ explicit RangeSums(SharedArena& arena)
      : sums_(arena.take<Sum>(kSums<Dtype>)),
        begins_(arena.take<uint32_t>(kThreads)),
        bases_(arena.take<int64_t>(kWorkersAtOnce)),
        starts_(arena.take<uint32_t>(kWorkersAtOnce + 1)),
        first_column_(arena.take<int64_t>(1)),
        warp_totals_(arena.take<uint32_t>(kWarps)) {}

  // Sums the range of `row_range` and `column_range` of a batch item. Ends with a barrier.
  __device__ void sum(const SumParams& params, int64_t batch, int64_t row_range, int64_t column_range) {
    const AggregateProblem& problem = params.problem;
    first_row_ = row_range * params.rows;
    const int64_t rows_left = problem.size - first_row_;
    rows_ = rows_left < params.rows ? static_cast<uint32_t>(rows_left) : params.rows;
    __syncthreads();  // the previous sums may still be read
    if (threadIdx.x == 0) *first_column_ = column_range * params.packs.divisor * kPackSize;
    auto* const vectors = reinterpret_cast<uint4*>(sums_);
    for (int32_t i = threadIdx.x; i < kSumBytes / kVectorBytes; i += kThreads) vectors[i] = make_uint4(0, 0, 0, 0);
    for (int64_t worker = 0; worker < problem.n; worker += kWorkersAtOnce) {
      const int64_t left = problem.n - worker;
      const int32_t workers = left < kWorkersAtOnce ? static_cast<int32_t>(left) : kWorkersAtOnce;
      const int64_t first_bucket = batch * problem.n + worker;
      find_entries(params, first_bucket, workers);
      add_in_order(params, workers);
    }
  }

  // Pack `slot` of the range, divided and rounded, never to -0.0; the range holds rows of params.packs.divisor packs.
  // Packs beyond the tensor, or beyond the range's rows, are zero.
  __device__ StoredPack result(uint32_t slot, Sum reciprocal) const {
    StoredPack pack;
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      const auto mean = Dtype::round(sums_[slot * kPackSize + k] * reciprocal);
      BitsOfSize<sizeof(mean)> bits;
      memcpy(&bits, &mean, sizeof(mean));
      bits = without_negative_zero(bits);
      memcpy(&pack.at[k], &bits, sizeof(mean));
    }
    return pack;
  }

  __device__ int64_t first_row() const { return first_row_; }
  __device__ int64_t first_column() const { return *first_column_; }

 private:
  // Addends that a thread has in flight from memory.
  static constexpr int kInFlight = kPackSize == 1 ? 4 : 2;

  // A pack of a worker's entry. None of it is examined before its turn, so that loading it stalls nothing.
  struct Addend {
    int32_t worker;  // -1 for none
    uint32_t pack;
    int32_t position;
    StoredPack values;
  };

  // Finds where the workers' entries for this range begin, and how many addends the workers before each have: addend i
  // of the range is a pack of the worker w with starts[w] <= i < starts[w + 1].
  __device__ void find_entries(const SumParams& params, int64_t first_bucket, int32_t workers) {
    const AggregateProblem& problem = params.problem;
    int lanes = kWarpSize;
    while (lanes * 2 * workers > kThreads) lanes /= 2;
    const LookBackGroup group(lanes);
    const int32_t sought = static_cast<int32_t>(threadIdx.x) / lanes;
    const bool wanted = sought < 2 * workers;
    const int64_t bucket = first_bucket + (wanted ? sought / 2 : 0);
    const int64_t count = wanted ? params.counts[bucket] : 0;
    const int64_t held = count < 0 ? 0 : count < problem.capacity ? count : problem.capacity;
    const uint32_t found = lower_bound(group, params.positions + bucket * problem.capacity,
                                       static_cast<uint32_t>(held), first_row_ + (sought % 2 ? rows_ : 0));
    if (wanted && group.lane == 0) begins_[sought] = found;
    __syncthreads();
    const int32_t w = static_cast<int32_t>(threadIdx.x);
    uint32_t addends = 0;
    if (w < workers) {
      const uint32_t begin = begins_[2 * w], end = begins_[2 * w + 1];
      // Positions out of order may name more entries than rows.
      addends = end < begin ? 0 : min(end - begin, static_cast<uint32_t>(params.rows)) * params.packs.divisor;
    }
    const BlockSum sum = block_exclusive_sum(addends, warp_totals_);
    if (w <= workers) starts_[w] = sum.before;
    if (w < workers) bases_[w] = (first_bucket + w) * problem.capacity + begins_[2 * w] - sum.before;
    __syncthreads();
  }

  // A worker's positions are distinct, so its addends go to different sums and need no atomics; a barrier between
  // workers keeps their order. The threads take addends in turn, whichever worker they belong to, so that workers with
  // few addends leave no thread idle.
  __device__ void add_in_order(const SumParams& params, int32_t workers) {
    const uint32_t total = starts_[workers];
    uint32_t next = threadIdx.x;
    int32_t owner = 0;
    const auto load = [&]() -> Addend {
      while (owner < workers && next >= starts_[owner + 1]) ++owner;
      Addend addend;
      addend.worker = -1;
      if (owner < workers) addend = load_addend(params, owner, next);
      next += kThreads;
      return addend;
    };
    Addend addends[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) addends[k] = load();
    int32_t turn = 0;  // the worker whose addends are being added, the same in all threads
    for (uint32_t step = 0; step < total; step += kInFlight * kThreads) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const Addend addend = addends[k];
        addends[k] = load();
        const uint32_t end = step + (k + 1) * kThreads;
        for (;;) {
          if (addend.worker == turn) add(params, addend);
          if (turn == workers || starts_[turn + 1] > end) break;  // the next step has more from this worker
          do ++turn;
          while (turn < workers && starts_[turn + 1] == starts_[turn]);
          __syncthreads();
        }
      }
    }
  }

  // Addend i of the range, which `worker` has. If a row is one pack, it is an entry, and nothing needs dividing.
  __device__ Addend load_addend(const SumParams& params, int32_t worker, uint32_t i) const {
    int64_t entry = bases_[worker] + i;
    int64_t element = entry * kPackSize;
    Addend addend;
    addend.worker = worker;
    addend.pack = 0;
    if (params.packs.divisor > 1) {
      const uint32_t start = starts_[worker];
      const uint32_t quotient = params.packs.quotient(i - start);
      addend.pack = params.packs.remainder(i - start, quotient);
      const int64_t column = first_column() + addend.pack * kPackSize;
      if (column >= params.problem.width) {
        addend.worker = -1;
        return addend;
      }
      entry = bases_[worker] + start + quotient;
      element = entry * params.problem.width + column;
    }
    addend.position = params.positions[entry];
    const auto* const from = static_cast<const Stored*>(params.values) + element;
    if constexpr (kPackSize == 1) {
      addend.values.at[0] = *from;
    } else {
      const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
      memcpy(&addend.values, &raw, sizeof(raw));
    }
    return addend;
  }

  // A position out of order may lie outside the range: it is ignored.
  __device__ void add(const SumParams& params, const Addend& addend) {
    const uint32_t row = static_cast<uint32_t>(addend.position) - static_cast<uint32_t>(first_row_);
    if (row >= rows_) return;
    const uint32_t slot = row * params.packs.divisor + addend.pack;
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) sums_[slot * kPackSize + k] += Dtype::widen(addend.values.at[k]);
  }

  Sum* sums_;
  uint32_t* begins_;  // [2 * kWorkersAtOnce], begin and end of each worker's entries
  int64_t* bases_;    // [kWorkersAtOnce], each worker's first entry less its start
  uint32_t* starts_;
  int64_t* first_column_;  // [1]; as a member it would spill
  uint32_t* warp_totals_;
  int64_t first_row_ = 0;
  uint32_t rows_ = 0;  // of the tensor in this range
};

// Sums are multiplied by this, not divided, as XLA compiles the division of pmean.
template <typename Sum>
ZEN_HOST_DEVICE Sum reciprocal_of(int64_t divisor) {
  return Sum{1} / static_cast<Sum>(divisor);
}

}  // namespace zen::cuda
