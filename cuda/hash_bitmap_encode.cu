#include "cuda/chunk.cuh"
#include "cuda/compaction.cuh"
#include "cuda/hash_bitmap_encode.h"
#include "cuda/rows.cuh"

namespace zen::cuda {
namespace {

struct EncodeParams {
  EncodeProblem problem;
  CompactionParams compaction;
  int32_t rows_per_chunk;  // of the kernel for rows
  const void* shard;
  uint32_t* words;
  void* values;
};

// A block's shared memory in encode_elements.
template <typename Bits>
struct EncodeElementsShared : CompactionShared {
  Bits* staged;  // the chunk's non-zeros

  __host__ __device__ explicit EncodeElementsShared(SharedArena& arena)
      : CompactionShared(arena), staged(arena.take<Bits>(ElementChunk<Bits>::kPerBlock)) {}
};

// A block's shared memory in encode_rows.
struct EncodeRowsShared : CompactionShared {
  uint32_t* words;    // the bitmap of the chunk's rows
  uint16_t* offsets;  // of the non-zero ones

  __host__ __device__ EncodeRowsShared(SharedArena& arena, const EncodeParams& params)
      : CompactionShared(arena),
        words(arena.take<uint32_t>(params.rows_per_chunk / kBitsPerWord)),
        offsets(arena.take<uint16_t>(params.rows_per_chunk)) {}
};

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) encode_elements(const __grid_constant__ EncodeParams params) {
  using Chunk = ElementChunk<Bits>;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const EncodeElementsShared<Bits> shared(arena);

  const EncodeProblem& problem = params.problem;
  const CompactionBlock block(params.compaction, shared);
  const Bits* const shard = static_cast<const Bits*>(params.shard) + block.batch * problem.size;
  const Chunk chunk(shard, int64_t{block.chunk} * Chunk::kPerBlock, problem.size, shared.warp_totals);
  const int64_t word = (int64_t{block.chunk} * kWarps + warp_id()) * Chunk::kWordsPerWarp + lane_id();
  if (lane_id() < Chunk::kWordsPerWarp && word < problem.words) {
    params.words[block.batch * problem.words + word] = chunk.word();
  }
  block.announce(chunk.nonzeros());
  chunk.for_each_nonzero([&](uint32_t rank, Bits element) { shared.staged[rank] = element; });

  const int64_t before = block.place(chunk.nonzeros());
  const uint32_t fitting = block.fitting(before, chunk.nonzeros());
  Bits* const values = static_cast<Bits*>(params.values) + block.batch * problem.capacity + before;
  for (uint32_t s = threadIdx.x; s < fitting; s += kThreads) values[s] = shared.staged[s];
}

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) encode_rows(const __grid_constant__ EncodeParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const EncodeRowsShared shared(arena, params);

  const EncodeProblem& problem = params.problem;
  const int word_count = params.rows_per_chunk / static_cast<int>(kBitsPerWord);
  if (threadIdx.x < word_count) shared.words[threadIdx.x] = 0;
  const CompactionBlock block(params.compaction, shared);
  const int64_t first = int64_t{block.chunk} * params.rows_per_chunk;
  const int64_t left = problem.size - first;
  const Bits* const rows =
      static_cast<const Bits*>(params.shard) + (block.batch * problem.size + first) * problem.width;
  mark_nonzero_rows(rows, left < params.rows_per_chunk ? left : params.rows_per_chunk, problem.width, shared.words);
  __syncthreads();
  const uint32_t word = threadIdx.x < word_count ? shared.words[threadIdx.x] : 0;
  const int64_t index = first / kBitsPerWord + threadIdx.x;
  if (threadIdx.x < word_count && index < problem.words) params.words[block.batch * problem.words + index] = word;
  const BlockSum sum = block_exclusive_sum(__popc(word), shared.warp_totals);
  block.announce(sum.total);
  expand_word(word, sum.before, threadIdx.x * kBitsPerWord, shared.offsets);

  const int64_t before = block.place(sum.total);
  const uint32_t fitting = block.fitting(before, sum.total);
  const int lanes = lanes_per_row(ceil_div(problem.width, Vector<Bits>::kSize));
  Bits* const values = static_cast<Bits*>(params.values) + (block.batch * problem.capacity + before) * problem.width;
  for (uint32_t s = threadIdx.x / lanes; s < fitting; s += kThreads / lanes) {
    const Bits* const row = rows + shared.offsets[s] * problem.width;
    copy_row(values + s * problem.width, row, problem.width, lane_id() % lanes, lanes);
  }
}

// A chunk of rows fills whole words of the bitmap.
int64_t encode_rows_per_chunk(int64_t width, int64_t element_bytes) {
  return rows_per_chunk(width, element_bytes, kBitsPerWord) / kBitsPerWord * kBitsPerWord;
}

int64_t units_per_chunk(int64_t width, int64_t element_bytes) {
  if (width > 1) return encode_rows_per_chunk(width, element_bytes);
  return elements_per_chunk<ElementChunk>(element_bytes);
}

template <typename Bits>
cudaError_t launch_encode(const EncodeParams& params, cudaStream_t stream) {
  const int64_t blocks = params.problem.batch * params.compaction.chunks;
  if (params.problem.width > 1) {
    return launch(encode_rows<Bits>, blocks, shared_bytes<EncodeRowsShared>(params), stream, params);
  }
  return launch(encode_elements<Bits>, blocks, shared_bytes<EncodeElementsShared<Bits>>(), stream, params);
}

}  // namespace

int64_t encode_scratch_bytes(int64_t size, int64_t width, int64_t element_bytes) {
  if (size == 0 || width == 0) return 0;
  return compaction_bytes(1, ceil_div(size, units_per_chunk(width, element_bytes)));
}

cudaError_t hash_bitmap_encode(const EncodeProblem& problem, Element element, const void* d_shard, uint32_t* d_words,
                               void* d_values, int32_t* d_count, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  if (problem.size == 0 || problem.width == 0) {
    ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_count, 0, problem.batch * sizeof(int32_t), stream));
    if (problem.words == 0) return cudaSuccess;
    return cudaMemsetAsync(d_words, 0, problem.batch * problem.words * sizeof(uint32_t), stream);
  }
  const int64_t bytes = element_bytes(element);
  const int64_t per_chunk = units_per_chunk(problem.width, bytes);
  EncodeParams params;
  params.problem = problem;
  params.rows_per_chunk = static_cast<int32_t>(per_chunk);
  params.shard = d_shard;
  params.words = d_words;
  params.values = d_values;
  ZEN_RETURN_IF_ERROR(begin_compaction(problem.batch, ceil_div(problem.size, per_chunk), problem.capacity, d_count,
                                       d_scratch, stream, &params.compaction));
  return visit_bits(element, [&](auto bits) { return launch_encode<decltype(bits)>(params, stream); });
}

}  // namespace zen::cuda
