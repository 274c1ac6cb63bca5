#include "cuda/aggregate_encode.h"
#include "cuda/common/keys.h"
#include "cuda/compaction.cuh"
#include "cuda/launch.cuh"
#include "cuda/range_sums.cuh"

namespace zen::cuda {
namespace {

template <typename Dtype>
struct AggregateEncodeParams {
  SumParams<Dtype> sums;
  CompactionParams compaction;
  int64_t words;  // of one batch item's bitmap
  uint32_t* bitmap;
  void* units;
};

// Words of a range's bitmap that a warp visits at once.
constexpr int kWordsAtOnce = 4;

// A range's bitmap, and how many of its units are non-zero before each word.
struct RangeBitmap {
  struct alignas(8) Word {
    uint32_t bits;
    uint32_t before;
  };
  Word* words;  // [kThreads]

  __host__ __device__ explicit RangeBitmap(SharedArena& arena) : words(arena.take<Word>(kThreads)) {}

  __device__ void clear() const { words[threadIdx.x].bits = 0; }

  // Calls visit(words) in a warp for the words of the first `rows` rows. It does not ask whether there are so many:
  // those beyond are of rows with zero sums.
  template <typename Visit>
  __device__ static void for_each_words(uint32_t rows, Visit visit) {
    for (uint32_t first = warp_id(); first * kWarpSize < rows; first += kWordsAtOnce * kWarps) {
      uint32_t words[kWordsAtOnce];
#pragma unroll
      for (int k = 0; k < kWordsAtOnce; ++k) words[k] = first + k * kWarps;
      visit(words);
    }
  }

  // Sets the bit of each row of the range that has a non-zero sum. If a row is one element, a thread looks at those of
  // a word; else a warp looks at 32 packs. If a row is one pack, they are the rows of one word; else it ORs what its
  // lanes saw, and 32 rows are a multiple of 32 packs, so the bits of its rows are in one word.
  template <typename Dtype, int kPackSize>
  __device__ void mark(const RangeSums<Dtype, kPackSize>& sums, const SumParams<Dtype>& params) const {
    static_assert(kSums<Dtype> / kPackSize % (kWordsAtOnce * kThreads) == 0, "there are sums of all words visited");
    const SmallDivisor& packs = params.packs;
    const uint32_t slots = sums.packs();
    const auto is_nonzero_slot = [&](uint32_t slot) {
      return is_nonzero_pack(sums.template results<kPackSize>(slot * kPackSize, params.reciprocal));
    };
    if (kPackSize == 1 && packs.divisor == 1) {
      const uint32_t first = threadIdx.x * kBitsPerWord;
      if (first < slots) words[threadIdx.x].bits = sums.nonzero_word(first, params.reciprocal);
      return;
    }
    if (packs.divisor == 1) {
      for_each_words(slots, [&](const uint32_t(&visited)[kWordsAtOnce]) {
#pragma unroll
        for (const uint32_t word : visited) {
          const uint32_t bits = __ballot_sync(kFullWarp, is_nonzero_slot(word * kWarpSize + lane_id()));
          if (lane_id() == 0) words[word].bits = bits;
        }
      });
      return;
    }
    for (uint32_t base = warp_id() * kWarpSize; base < slots; base += kThreads) {
      const uint32_t slot = base + lane_id();
      const uint32_t row = packs.quotient(slot);
      const bool nonzero = slot < slots && is_nonzero_slot(slot);
      const uint32_t bits = __reduce_or_sync(kFullWarp, nonzero ? 1u << (row % kBitsPerWord) : 0);
      if (lane_id() == 0 && bits != 0) atomicOr(&words[row / kBitsPerWord].bits, bits);
    }
  }

  // Ranks the marked rows; returns their number. `warp_totals` is used as in block_exclusive_sum. Starts and ends with
  // a barrier.
  __device__ uint32_t rank(uint32_t* warp_totals) const {
    __syncthreads();
    const BlockSum sum = block_exclusive_sum(__popc(words[threadIdx.x].bits), warp_totals);
    words[threadIdx.x].before = sum.before;
    __syncthreads();
    return sum.total;
  }

  struct Row {
    bool marked;
    uint32_t rank;  // if it is marked
  };

  // The row that has this bit in this word.
  __device__ Row row(uint32_t word, uint32_t bit) const {
    const Word found = words[word];
    return {(found.bits & bit) != 0, found.before + __popc(found.bits & (bit - 1))};
  }

  // Writes to the item's bitmap, which is zero beforehand if ranges are smaller than a word.
  __device__ void store(int64_t first_row, int32_t rows, uint32_t* bitmap, int64_t bitmap_words) const {
    const int64_t word = first_row / kBitsPerWord + threadIdx.x;
    if (rows < kBitsPerWord) {
      if (threadIdx.x == 0) atomicOr(bitmap + word, words[0].bits << (first_row % kBitsPerWord));
    } else if (threadIdx.x < rows / kBitsPerWord && word < bitmap_words) {
      bitmap[word] = words[threadIdx.x].bits;
    }
  }

 private:
  template <typename Pack>
  __device__ static bool is_nonzero_pack(const Pack& pack) {
    using Bits = BitsOf<decltype(pack.at[0])>;
    Bits bits[sizeof(pack) / sizeof(Bits)];
    memcpy(bits, &pack, sizeof(pack));
    bool nonzero = false;
#pragma unroll
    for (const Bits each : bits) nonzero |= is_nonzero(each);
    return nonzero;
  }
};

// Rows wider than a block's sums are summed twice, one column range at a time: to see whether they are zero, and to be
// written once it is known where.
template <typename Dtype, int kPackSize>
__global__ void __launch_bounds__(kThreads, kSumBlocks<Dtype, kPackSize>)
    aggregate_encode_range(const __grid_constant__ AggregateEncodeParams<Dtype> params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  RangeSums<Dtype, kPackSize> sums(arena);
  const RangeBitmap bitmap(arena);
  const CompactionShared shared(arena);

  const AggregateProblem& problem = params.sums.problem;
  const SmallDivisor& packs = params.sums.packs;
  bitmap.clear();
  sums.clear();
  const CompactionBlock block(params.compaction, shared);

  const int32_t column_ranges = params.sums.column_ranges;
  const int32_t steps = column_ranges == 1 ? 1 : 2 * column_ranges;
  for (int32_t step = 0; step < steps; ++step) {
    if (step > 0) {
      __syncthreads();  // the previous sums may still be read
      sums.clear();
    }
    sums.sum(params.sums, block.batch, block.chunk, step < column_ranges ? step : step - column_ranges);
    if (step < column_ranges) bitmap.mark(sums, params.sums);
    if (step == column_ranges - 1) {
      const uint32_t units = bitmap.rank(shared.warp_totals);
      block.announce(units);
      bitmap.store(sums.first_row(), params.sums.rows, params.bitmap + block.batch * params.words, params.words);
      block.place(units);
    }
    if (step + column_ranges < steps) continue;

    const int64_t before = *shared.before;
    const uint32_t fitting = block.fitting(before, params.sums.rows);
    auto* const to =
        computed_once(static_cast<typename Dtype::Stored*>(params.units) +
                      (block.batch * params.compaction.capacity + before) * problem.width + sums.first_column());
    if (packs.divisor == 1) {
      bitmap.for_each_words(sums.packs(), [&](const uint32_t(&words)[kWordsAtOnce]) {
        // All of them are read before any is written: then reading takes no branches.
        RangeBitmap::Row rows[kWordsAtOnce];
        Pack<Dtype, kPackSize> packs[kWordsAtOnce];
#pragma unroll
        for (int k = 0; k < kWordsAtOnce; ++k) {
          const uint32_t first = (words[k] * kWarpSize + lane_id()) * kPackSize;
          rows[k] = bitmap.row(words[k], 1u << lane_id());
          // The mean of a marked row of one element is not zero.
          packs[k] = kPackSize == 1 ? sums.template means<kPackSize>(first, params.sums.reciprocal)
                                    : sums.template results<kPackSize>(first, params.sums.reciprocal);
        }
#pragma unroll
        for (int k = 0; k < kWordsAtOnce; ++k) {
          if (rows[k].marked && rows[k].rank < fitting) store_pack(to + rows[k].rank * kPackSize, packs[k]);
        }
      });
      continue;
    }
    for (uint32_t i = threadIdx.x; i < sums.packs(); i += kThreads) {
      const uint32_t row = packs.quotient(i);
      const RangeBitmap::Row found = bitmap.row(row / kBitsPerWord, 1u << (row % kBitsPerWord));
      if (!found.marked || found.rank >= fitting) continue;
      store_pack(to + (found.rank * packs.divisor + packs.remainder(i, row)) * kPackSize,
                 sums.template results<kPackSize>(i * kPackSize, params.sums.reciprocal));
    }
  }
}

}  // namespace

int64_t aggregate_encode_scratch_bytes(int64_t size, int64_t width, int64_t element_bytes) {
  if (size == 0 || width == 0) return 0;
  return compaction_bytes(1, ceil_div(size, rows_per_range(size, width, element_bytes == 8 ? 8 : 4)));
}

cudaError_t aggregate_encode(const AggregateEncodeProblem& problem, Element element, int64_t divisor,
                             const int32_t* d_positions, const void* d_values, const int32_t* d_counts,
                             uint32_t* d_words, void* d_units, int32_t* d_count, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  const int64_t words = bitmap_words(problem.size);
  const auto zero_words = [&] {
    return words > 0 ? cudaMemsetAsync(d_words, 0, problem.batch * words * sizeof(uint32_t), stream) : cudaSuccess;
  };
  if (problem.size == 0 || problem.width == 0) {
    ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_count, 0, problem.batch * sizeof(int32_t), stream));
    return zero_words();
  }
  const bool vectors = fits_vectors(problem.width, element_bytes(element), d_values, d_units);
  return visit_dtype_and_pack(element, vectors, [&](auto dtype, auto pack) {
    using Dtype = decltype(dtype);
    constexpr int kPackSize = decltype(pack)::value;
    AggregateEncodeParams<Dtype> params;
    params.sums = cut_into_ranges<Dtype, kPackSize>(problem, divisor, d_positions, d_values, d_counts);
    params.words = words;
    params.bitmap = d_words;
    params.units = d_units;
    ZEN_RETURN_IF_ERROR(begin_compaction(problem.batch, params.sums.row_ranges, problem.room, d_count, d_scratch,
                                         stream, &params.compaction));
    if (params.sums.rows < kBitsPerWord) ZEN_RETURN_IF_ERROR(zero_words());
    const int64_t blocks = problem.batch * params.sums.row_ranges;
    const size_t shared = shared_bytes<RangeSums<Dtype, kPackSize>, RangeBitmap, CompactionShared>();
    return launch(aggregate_encode_range<Dtype, kPackSize>, blocks, shared, stream, params);
  });
}

}  // namespace zen::cuda
