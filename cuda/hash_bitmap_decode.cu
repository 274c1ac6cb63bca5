#include "cuda/common/hash.h"
#include "cuda/hash_bitmap_decode.h"
#include "cuda/rank_directory.cuh"
#include "cuda/rows.cuh"
#include "cuda/tile_rotations.cuh"

namespace zen::cuda {
namespace {

// Output bytes that a block produces.
constexpr int64_t kBlockBytes = 64 << 10;

struct DecodeParams {
  DecodeProblem problem;
  uint32_t seed;
  int32_t units_per_chunk;
  uint32_t table_room;  // tiles whose rotations a block of decode_elements keeps
  int64_t chunks;       // of one batch item
  const void* values;
  void* out;
  DirectoryParams directory;
};

// The consecutive units that this block produces and the tiles that they touch.
struct DecodeBlock {
  int64_t batch;
  int64_t first_unit;
  int32_t units;
  int64_t first_tile;
  int64_t last_tile;

  __device__ explicit DecodeBlock(const DecodeParams& params) {
    const int64_t n = params.problem.n;
    batch = blockIdx.x / params.chunks;
    first_unit = (blockIdx.x - batch * params.chunks) * params.units_per_chunk;
    const int64_t left = params.problem.units - first_unit;
    units = left < params.units_per_chunk ? static_cast<int32_t>(left) : params.units_per_chunk;
    first_tile = first_unit / n;
    last_tile = (first_unit + units - 1) / n;
  }
};

// Bit-driven: a thread takes one word of one server and puts its values in their places in shared memory, from where
// the block's outputs, zeros included, are written in order.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) decode_elements(const __grid_constant__ DecodeParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  Vector<Bits>* const vectors = arena.take<Vector<Bits>>(kBlockBytes / kVectorBytes);
  Bits* const expanded = reinterpret_cast<Bits*>(vectors);
  uint4* const raw = reinterpret_cast<uint4*>(vectors);
  uint16_t* const table = arena.take<uint16_t>(params.table_room);

  const DecodeProblem& problem = params.problem;
  const DecodeBlock block(params);
  for (int i = threadIdx.x; i < kBlockBytes / kVectorBytes; i += kThreads) raw[i] = make_uint4(0, 0, 0, 0);

  const uint32_t n = static_cast<uint32_t>(problem.n);
  const uint32_t first_tile = static_cast<uint32_t>(block.first_tile);
  const uint32_t first_word = first_tile / 32u;
  const uint32_t word_count = static_cast<uint32_t>(block.last_tile / kBitsPerWord) - first_word + 1;
  const uint32_t skipped_bits = first_tile % 32u;
  // Where the first tile starts, counted from the block's first unit: zero or negative.
  const int32_t origin = static_cast<int32_t>(block.first_tile * n - block.first_unit);
  const Bits* const values = static_cast<const Bits*>(params.values);
  const auto expand = [&](const auto& rotations) {
    __syncthreads();  // the zeros and the table are complete
    for (uint32_t task = threadIdx.x; task < n * word_count; task += kThreads) {
      const uint32_t server = task / word_count;
      const uint32_t word_index = first_word + task % word_count;
      const int64_t bucket = block.batch * n + server;
      uint32_t word = params.directory.bitmaps[bucket * problem.words + word_index];
      if (word == 0) continue;
      int64_t rank = rank_before_word(params.directory, bucket, word_index);
      if (word_index == first_word) {
        const uint32_t skipped = (1u << skipped_bits) - 1u;
        rank += __popc(word & skipped);
        word &= ~skipped;
      }
      const Bits* value = values + bucket * problem.capacity + rank;
      const Bits* const end = values + (bucket + 1) * problem.capacity;
      for (; word != 0 && value < end; word &= word - 1, ++value) {
        const uint32_t tile = word_index * 32u + __ffs(static_cast<int>(word)) - 1;
        if (tile > block.last_tile) break;
        const uint32_t from_first = tile - first_tile;
        const int32_t place =
            origin + static_cast<int32_t>(from_first * n + offset_in_tile(server, rotations[from_first], n));
        if (place >= 0 && place < block.units) expanded[place] = *value;
      }
    }
  };
  const HashedRotations hashed = {first_tile, n, params.seed};
  if (params.table_room > 0) {
    expand(RotationTable(table, params.table_room, hashed));
  } else {
    expand(hashed);
  }
  __syncthreads();

  Bits* const out = static_cast<Bits*>(params.out) + block.batch * problem.units + block.first_unit;
  const int32_t whole = is_aligned(out) ? block.units / Vector<Bits>::kSize : 0;
  for (int32_t i = threadIdx.x; i < whole; i += kThreads) __stcs(reinterpret_cast<uint4*>(out) + i, raw[i]);
  for (int32_t i = whole * Vector<Bits>::kSize + threadIdx.x; i < block.units; i += kThreads) out[i] = expanded[i];
}

// Unit-driven: a thread finds the place in `values` of one unit's row, then the lanes that share a row copy it.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) decode_rows(const __grid_constant__ DecodeParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  int64_t* const sources = arena.take<int64_t>(params.units_per_chunk);  // in units from `values`; -1 for a zero row

  const DecodeProblem& problem = params.problem;
  const DecodeBlock block(params);
  const uint32_t n = static_cast<uint32_t>(problem.n);
  for (int32_t i = threadIdx.x; i < block.units; i += kThreads) {
    const int64_t unit = block.first_unit + i;
    const int64_t tile = unit / n;
    const uint32_t rotation = tile_rotation(static_cast<uint32_t>(tile), n, params.seed);
    const uint32_t server = server_in_tile(static_cast<uint32_t>(unit - tile * n), rotation, n);
    const int64_t bucket = block.batch * n + server;
    const uint32_t bit = 1u << (tile % kBitsPerWord);
    const uint32_t word = params.directory.bitmaps[bucket * problem.words + tile / kBitsPerWord];
    int64_t source = -1;
    if (word & bit) {
      const int64_t rank = rank_before_word(params.directory, bucket, tile / kBitsPerWord) + __popc(word & (bit - 1u));
      if (rank < problem.capacity) source = bucket * problem.capacity + rank;
    }
    sources[i] = source;
  }
  __syncthreads();

  const int64_t width = problem.width;
  const Bits* const values = static_cast<const Bits*>(params.values);
  Bits* const out = static_cast<Bits*>(params.out) + (block.batch * problem.units + block.first_unit) * width;
  const int lanes = lanes_per_row(ceil_div(width, Vector<Bits>::kSize));
  for (int32_t i = threadIdx.x / lanes; i < block.units; i += kThreads / lanes) {
    Bits* const to = out + i * width;
    if (sources[i] < 0) {
      zero_row(to, width, lane_id() % lanes, lanes);
    } else {
      copy_row(to, values + sources[i] * width, width, lane_id() % lanes, lanes);
    }
  }
}

template <typename Bits>
cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream) {
  SharedArena arena = SharedArena::for_measuring();
  const int64_t blocks = params.problem.batch * params.chunks;
  if (params.problem.width > 1) {
    arena.take<int64_t>(params.units_per_chunk);
    return launch(decode_rows<Bits>, blocks, arena.used(), stream, params);
  }
  arena.take<Vector<Bits>>(kBlockBytes / kVectorBytes);
  arena.take<uint16_t>(params.table_room);
  return launch(decode_elements<Bits>, blocks, arena.used(), stream, params);
}

}  // namespace

int64_t decode_scratch_bytes(int64_t units, int64_t width, int64_t n) {
  if (units == 0 || width == 0) return 0;
  return directory_bytes(n, bitmap_words(ceil_div(units, n)));
}

cudaError_t hash_bitmap_decode(const DecodeProblem& problem, Element element, uint32_t seed, const uint32_t* d_words,
                               const void* d_values, void* d_out, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0 || problem.units == 0 || problem.width == 0) return cudaSuccess;
  const int64_t bytes = element_bytes(element);
  DecodeParams params;
  params.problem = problem;
  params.seed = seed;
  params.units_per_chunk =
      static_cast<int32_t>(problem.width > 1 ? rows_per_chunk(problem.width, bytes, 1) : kBlockBytes / bytes);
  params.table_room = RotationTable::room(problem.n, params.units_per_chunk);
  params.chunks = ceil_div(problem.units, params.units_per_chunk);
  params.values = d_values;
  params.out = d_out;
  ZEN_RETURN_IF_ERROR(
      make_directory(d_words, problem.batch * problem.n, problem.words, d_scratch, stream, &params.directory));
  return visit_bits(element, [&](auto bits) { return launch_decode<decltype(bits)>(params, stream); });
}

}  // namespace zen::cuda
