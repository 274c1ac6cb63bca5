#include <algorithm>
#include <limits>
#include <numeric>

#include "cuda/common/divide.h"
#include "cuda/common/hash.h"
#include "cuda/hash_bitmap_decode.h"
#include "cuda/rank_directory.cuh"
#include "cuda/rows.cuh"
#include "cuda/tile_rotations.cuh"

namespace zen::cuda {
namespace {

// Output bytes that a block produces.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int kBlockVectors = kBlockBytes / kVectorBytes;

struct DecodeParams {
  DecodeProblem problem;
  uint32_t seed;
  int32_t units_per_chunk;
  bool whole_words;     // the units of a block are those of whole words of every server
  int32_t tiles;        // that a block touches, at most
  SmallDivisor words;   // of one server that a block touches, at most
  uint32_t table_room;  // tiles whose rotations a block of decode_elements keeps
  int64_t chunks;       // of one batch item
  uint32_t most_rank;   // the capacity, as far as ranks can reach
  const void* values;
  void* out;
  DirectoryParams directory;
};

// The consecutive units that this block produces.
struct DecodeBlock {
  int64_t batch;
  int64_t first_unit;
  uint32_t units;
  uint32_t first_tile;
  uint32_t skipped;  // units of the first tile that lie before the block

  __device__ explicit DecodeBlock(const DecodeParams& params) {
    const uint32_t n = static_cast<uint32_t>(params.problem.n);
    const uint32_t chunks = static_cast<uint32_t>(params.chunks);  // no more than blocks
    const uint32_t item = params.problem.batch == 1 ? 0 : blockIdx.x / chunks;
    const uint32_t chunk = blockIdx.x - item * chunks;
    batch = item;
    first_unit = int64_t{chunk} * params.units_per_chunk;
    units = static_cast<uint32_t>(min(params.problem.units - first_unit, int64_t{params.units_per_chunk}));
    first_tile = params.whole_words ? chunk * params.tiles : static_cast<uint32_t>(first_unit / n);
    skipped = params.whole_words ? 0 : static_cast<uint32_t>(first_unit - int64_t{first_tile} * n);
  }
};

// The bits of one word of one server that lie in a block's tiles, and their values. Each of the three steps waits for
// what the one before it loads, so that a caller can do other work in between.
template <typename Bits>
class ServerWord {
 public:
  static constexpr int kInFlight = sizeof(Bits) == 8 ? 5 : 6;

  __device__ ServerWord(const DecodeParams& params, const DecodeBlock& block, uint32_t task) {
    const uint32_t quotient = params.words.quotient(task);
    const uint32_t index = block.first_tile / 32u + params.words.remainder(task, quotient);
    const int32_t first_tile = static_cast<int32_t>(index * 32u - block.first_tile);
    const uint32_t n = static_cast<uint32_t>(params.problem.n);
    const uint32_t words = static_cast<uint32_t>(params.problem.words);
    if (quotient >= n || index >= words || first_tile >= params.tiles) return;
    server_ = quotient;
    first_tile_ = first_tile;
    // All threads add 32 bits to the same addresses.
    const uint32_t groups = static_cast<uint32_t>(params.directory.groups);
    const uint32_t* const bitmaps = params.directory.bitmaps + block.batch * n * words;
    const uint32_t* const directory = params.directory.directory + block.batch * n * groups;
    bits_ = bitmaps[server_ * words + index];
    before_ = directory[server_ * groups + params.directory.group(index)];
  }

  // A whole warp calls this.
  __device__ void find_values(const DecodeParams& params, const DecodeBlock& block) {
    const uint32_t count = __popc(bits_);
    uint32_t rank = before_ + params.directory.sum_in_group(count) - count;
    if (!params.whole_words) {
      const int32_t tiles = params.tiles - first_tile_;
      const uint32_t earlier = first_tile_ < 0 ? (1u << -first_tile_) - 1u : 0;
      const uint32_t later = tiles < 32 ? ~0u << tiles : 0;
      rank += __popc(bits_ & earlier);
      bits_ &= ~(earlier | later);
    }
    const uint32_t beyond = rank < params.most_rank ? params.most_rank - rank : 0;
    count_ = static_cast<int32_t>(min(static_cast<uint32_t>(__popc(bits_)), beyond));
    const int64_t capacity = params.problem.capacity;
    const Bits* const values = static_cast<const Bits*>(params.values) + block.batch * params.problem.n * capacity;
    values_ = values + server_ * capacity + rank;
    load_values();
  }

  template <typename Rotations>
  __device__ void put_values(const Rotations& rotations, const DecodeBlock& block, uint32_t n, Bits* expanded) {
    for (;; load_values()) {
      uint32_t places[kInFlight];
#pragma unroll
      for (uint32_t& place : places) place = block.units;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (Rotations::kCostly && i >= count_) break;
        const uint32_t tile = i < count_ ? first_tile_ + __ffs(static_cast<int>(bits_)) - 1 : 0;
        const uint32_t place = tile * n + offset_in_tile(server_, rotations[tile], n) - block.skipped;
        places[i] = i < count_ ? place : block.units;
        bits_ &= bits_ - 1;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (places[i] < block.units) expanded[places[i]] = loaded_[i];
      }
      if (count_ <= kInFlight) break;
      count_ -= kInFlight;
      values_ += kInFlight;
    }
  }

 private:
  __device__ void load_values() {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (i < count_) loaded_[i] = values_[i];
    }
  }

  uint32_t server_ = 0;
  int32_t first_tile_ = 0;  // of the whole word, counted from the block's first
  uint32_t bits_ = 0;
  uint32_t before_ = 0;  // set bits before the word's group
  int32_t count_;        // of values, no more than bits
  const Bits* values_;
  Bits loaded_[kInFlight];  // the first of them
};

// A block's shared memory in decode_elements.
struct DecodeElementsShared {
  uint4* vectors;   // [kBlockVectors], its outputs
  uint16_t* table;  // of rotations

  __host__ __device__ DecodeElementsShared(SharedArena& arena, const DecodeParams& params)
      : vectors(arena.take<uint4>(kBlockVectors)), table(arena.take<uint16_t>(params.table_room)) {}
};

// Bit-driven: a thread takes one word of one server and puts its values in their places in shared memory, from where
// the block's outputs, zeros included, are written in order.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 3) decode_elements(const __grid_constant__ DecodeParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const DecodeElementsShared shared(arena, params);
  uint4* const vectors = shared.vectors;
  Bits* const expanded = reinterpret_cast<Bits*>(vectors);

  const DecodeProblem& problem = params.problem;
  const DecodeBlock block(params);
  const uint32_t n = static_cast<uint32_t>(problem.n);

  ServerWord<Bits> word(params, block, threadIdx.x);
  // Still a loop: nvcc would have fully unrolled stores wait for the word, with what find_values() does first.
#pragma unroll 4
  for (int i = 0; i < kBlockVectors; i += kThreads) vectors[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
  word.find_values(params, block);
  const auto expand = [&](const auto& rotations) {
    __syncthreads();  // the zeros and the table are complete
    for (uint32_t first = 0;;) {
      word.put_values(rotations, block, n, expanded);
      first += kThreads;
      if (first >= n * params.words.divisor) break;
      word = ServerWord<Bits>(params, block, first + threadIdx.x);
      word.find_values(params, block);
    }
  };
  const HashedRotations hashed = {block.first_tile, n, params.seed};
  if (params.table_room > 0) {
    expand(RotationTable(shared.table, params.table_room, hashed));
  } else {
    expand(hashed);
  }
  __syncthreads();

  Bits* const out = static_cast<Bits*>(params.out) + block.batch * problem.units + block.first_unit;
  const uint32_t whole = is_aligned(out) ? block.units / Vector<Bits>::kSize : 0;
#pragma unroll
  for (uint32_t first = 0; first < kBlockVectors; first += kThreads) {
    const uint32_t i = first + threadIdx.x;
    if (i < whole) __stcs(reinterpret_cast<uint4*>(out) + i, vectors[i]);
  }
  for (uint32_t i = whole * Vector<Bits>::kSize + threadIdx.x; i < block.units; i += kThreads) out[i] = expanded[i];
}

// A block's shared memory in decode_rows.
struct DecodeRowsShared {
  int64_t* sources;  // of its units, in units from `values`; -1 for a zero row

  __host__ __device__ DecodeRowsShared(SharedArena& arena, const DecodeParams& params)
      : sources(arena.take<int64_t>(params.units_per_chunk)) {}
};

// Unit-driven: a thread finds the place in `values` of one unit's row, then the lanes that share a row copy it.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) decode_rows(const __grid_constant__ DecodeParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  int64_t* const sources = DecodeRowsShared(arena, params).sources;

  const DecodeProblem& problem = params.problem;
  const DecodeBlock block(params);
  const uint32_t n = static_cast<uint32_t>(problem.n);
  for (uint32_t i = threadIdx.x; i < block.units; i += kThreads) {
    const uint32_t from_tile = block.skipped + i;  // in units from the start of the first tile
    const uint32_t tile = block.first_tile + from_tile / n;
    const uint32_t server = server_in_tile(from_tile % n, tile_rotation(tile, n, params.seed), n);
    const int64_t bucket = block.batch * n + server;
    const uint32_t bit = 1u << (tile % 32u);
    const uint32_t word = *params.directory.word(bucket, tile / 32u);
    int64_t source = -1;
    if (word & bit) {
      const int64_t rank = int64_t{bits_before_word(params.directory, bucket, tile / 32u)} + __popc(word & (bit - 1u));
      if (rank < problem.capacity) source = bucket * problem.capacity + rank;
    }
    sources[i] = source;
  }
  __syncthreads();

  const int64_t width = problem.width;
  const Bits* const values = static_cast<const Bits*>(params.values);
  Bits* const out = static_cast<Bits*>(params.out) + (block.batch * problem.units + block.first_unit) * width;
  const int lanes = lanes_per_row(ceil_div(width, Vector<Bits>::kSize));
  for (uint32_t i = threadIdx.x / lanes; i < block.units; i += kThreads / lanes) {
    Bits* const to = out + i * width;
    if (sources[i] < 0) {
      zero_row(to, width, lane_id() % lanes, lanes);
    } else {
      copy_row(to, values + sources[i] * width, width, lane_id() % lanes, lanes);
    }
  }
}

// The most tiles that a block of `units` units touches.
int32_t tiles_per_block(int64_t n, int64_t units) {
  return static_cast<int32_t>(units % n == 0 ? units / n : units / n + 2);
}

// The most words of one server that it touches: it starts as late in a word as a multiple of `step` can.
uint32_t words_per_block(int64_t n, int64_t units) {
  const int32_t tiles = tiles_per_block(n, units);
  const int32_t step = units % n == 0 ? std::gcd(tiles, 32) : 1;
  return static_cast<uint32_t>((32 - step + tiles - 1) / 32 + 1);
}

template <typename Bits>
cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream) {
  const int64_t blocks = params.problem.batch * params.chunks;
  if (params.problem.width > 1) {
    return launch(decode_rows<Bits>, blocks, shared_bytes<DecodeRowsShared>(params), stream, params);
  }
  return launch(decode_elements<Bits>, blocks, shared_bytes<DecodeElementsShared>(params), stream, params);
}

// Words of every server that a block of decode_elements has room for.
int64_t words_with_room(int64_t n, int64_t element_bytes) { return kBlockBytes / (n * kBitsPerWord * element_bytes); }

// The words of a group of the directory, as a power of two. A block of decode_elements takes whole groups, which are as
// large as they can be without leaving more than a quarter of its room empty, or parts of one word.
uint32_t log_group_words(int64_t width, int64_t n, int64_t element_bytes) {
  if (width > 1) return kLogGroupWords;
  const int64_t words = words_with_room(n, element_bytes);
  if (words == 0) return 0;
  uint32_t log = kLogGroupWords;
  while (words % (1 << log) > words / 4) --log;
  return log;
}

int32_t units_per_chunk(const DecodeProblem& problem, int64_t element_bytes, uint32_t log_group) {
  if (problem.width > 1) return static_cast<int32_t>(rows_per_chunk(problem.width, element_bytes, 1));
  const int64_t words = words_with_room(problem.n, element_bytes) >> log_group << log_group;
  return static_cast<int32_t>(words > 0 ? words * kBitsPerWord * problem.n : kBlockBytes / element_bytes);
}

}  // namespace

int64_t decode_scratch_bytes(int64_t units, int64_t width, int64_t element_bytes, int64_t n) {
  if (units == 0 || width == 0) return 0;
  return directory_bytes(n, bitmap_words(ceil_div(units, n)), log_group_words(width, n, element_bytes));
}

cudaError_t hash_bitmap_decode(const DecodeProblem& problem, Element element, uint32_t seed, const uint32_t* d_words,
                               const void* d_values, void* d_out, void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0 || problem.units == 0 || problem.width == 0) return cudaSuccess;
  const int64_t bytes = element_bytes(element);
  const uint32_t log_group = log_group_words(problem.width, problem.n, bytes);
  DecodeParams params;
  params.problem = problem;
  params.seed = seed;
  params.units_per_chunk = units_per_chunk(problem, bytes, log_group);
  params.whole_words = params.units_per_chunk % (problem.n * kBitsPerWord) == 0;
  params.tiles = tiles_per_block(problem.n, params.units_per_chunk);
  params.words = SmallDivisor(words_per_block(problem.n, params.units_per_chunk));
  // Where at most every other tile has a value, hashing for each value takes less.
  const bool dense = problem.capacity * problem.n > problem.units / problem.n / 2;
  params.table_room =
      dense ? std::min<uint32_t>(params.tiles, RotationTable::room(problem.n, params.units_per_chunk)) : 0;
  params.chunks = ceil_div(problem.units, params.units_per_chunk);
  params.most_rank = static_cast<uint32_t>(std::min(problem.capacity, int64_t{std::numeric_limits<uint32_t>::max()}));
  params.values = d_values;
  params.out = d_out;
  ZEN_RETURN_IF_ERROR(make_directory(d_words, problem.batch * problem.n, problem.words, log_group, d_scratch, stream,
                                     &params.directory));
  return visit_bits(element, [&](auto bits) { return launch_decode<decltype(bits)>(params, stream); });
}

}  // namespace zen::cuda
