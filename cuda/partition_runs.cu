#include "cuda/partition_runs.cuh"

#include <limits>
#include <type_traits>

namespace zen::cuda {
namespace {

// Nobody knows yet how many non-zeros there are; the buckets' slots stand for them. This is faster than one pass up to
// 6 % non-zeros, and for 128 servers still. Fewer slots than a thousandth are of a call that only counts: all chunks
// would be sorted twice.
constexpr int64_t kLeastUnitsPerSlot = 15;
constexpr int64_t kMostUnitsPerSlot = 1000;
constexpr int64_t kMostServers = 128;

// Where a chunk's runs begin in the list, and its first tile.
struct alignas(8) ChunkHead {
  uint32_t from;
  uint32_t tile;
};

// `from` of a chunk for which the list had no room: there are more non-zeros than slots in the buckets.
constexpr uint32_t kUnlisted = 0xffffffffu;

constexpr int kRowsPerWarp = 16;  // of 32 runs each, that a warp of scan_runs takes
constexpr int kRunsAtOnce = 2;    // that the lanes of a run in move_runs move

constexpr int kBlocksForUnlisted = 2;  // for each multiprocessor

struct RunsParams : DenseParams {
  uint32_t room;               // entries in the list
  unsigned long long* listed;  // entries asked for so far
  ChunkHead* heads;            // [batch, chunks]
  uint32_t* runs;              // [batch, n, chunks]: start among the chunk's entries << 16 | length
  uint32_t* before;            // [batch, n, chunks]: the server's units in earlier chunks
  void* list_values;           // [room]
  uint16_t* list_tiles;        // [room], counted from the chunk's first
  int log_lanes;               // of move_runs, for one run
  uint32_t blocks_for_unlisted;
};

// A chunk of a batch item.
struct ChunkId {
  uint32_t item;
  uint32_t of_item;

  __device__ ChunkId(uint32_t id, int64_t chunks)
      : item(id / static_cast<uint32_t>(chunks)), of_item(id - item * static_cast<uint32_t>(chunks)) {}

  // The server's run in params.runs and params.before.
  __device__ int64_t run(const RunsParams& params, uint32_t server) const {
    return (int64_t{item} * params.servers + server) * params.chunks + of_item;
  }
};

// Sorts a chunk's non-zeros by server: calls claim(nonzeros) when they are counted and, after a barrier,
// deliver(units, elements, nonzeros). Has a barrier before it uses what deliver() reads.
template <typename Bits, typename Claim, typename Deliver>
__device__ void sort_chunk(const RunsParams& params, ChunkId id, ElementsShared<Bits>* shared, Claim claim,
                           Deliver deliver) {
  StagedChunk<Bits> chunk = shared->chunk();
  const ServerSort sort(shared->lists, params.servers);
  __syncthreads();
  const int64_t first = int64_t{id.of_item} * StagedChunk<Bits>::kPerBlock;
  const Bits* const x = static_cast<const Bits*>(params.x) + id.item * params.problem.units;
  chunk.load(x, first, params.problem.units);
  const ChunkStart start(first, params.servers);
  with_rotations(params, start, shared->table, [&](const auto& rotations) {
    const auto elements = list_nonzeros(&chunk, x + first, shared);
    claim(chunk.nonzeros());
    const ChunkUnits units(params.n, shared->lists.offsets, start, rotations);
    sort.sort(chunk.warp_begin(), chunk.warp_end(), units, [](uint32_t, uint32_t) {});
    __syncthreads();
    deliver(units, elements, chunk.nonzeros());
  });
  chunk.retire();
}

// A block's shared memory in sort_chunks.
template <typename Bits>
struct ListingShared : ElementsShared<Bits> {
  uint32_t* listed_from;  // [1]

  __host__ __device__ ListingShared(SharedArena& arena, const DenseParams& params)
      : ElementsShared<Bits>(arena, params), listed_from(arena.take<uint32_t>(1)) {}
};

// Lists each chunk's non-zeros, sorted by server, and describes the runs.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 3) sort_chunks(const __grid_constant__ RunsParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  ListingShared<Bits> shared(arena, params);
  const SortShared& lists = shared.lists;
  const ChunkId id(blockIdx.x, params.chunks);
  const auto claim = [&](uint32_t nonzeros) {
    if (threadIdx.x != 0) return;
    const unsigned long long from = atomicAdd(params.listed, static_cast<unsigned long long>(nonzeros));
    *shared.listed_from = from + nonzeros <= params.room ? static_cast<uint32_t>(from) : kUnlisted;
  };
  sort_chunk(params, id, &shared, claim, [&](const auto& units, const auto& elements, uint32_t nonzeros) {
    const uint32_t from = *shared.listed_from;
    if (threadIdx.x == 0) params.heads[blockIdx.x] = {from, units.first_tile()};
    for (uint32_t server = threadIdx.x; server < params.servers; server += kThreads) {
      const uint32_t begin = lists.starts[server], count = lists.starts[server + 1] - begin;
      params.runs[id.run(params, server)] = begin << 16 | count;
    }
    if (from == kUnlisted) return;
    Bits* const values = static_cast<Bits*>(params.list_values) + from;
    uint16_t* const tiles = params.list_tiles + from;
    for (uint32_t s = threadIdx.x; s < nonzeros; s += kThreads) {
      const uint32_t j = lists.order[s];
      tiles[s] = static_cast<uint16_t>(units.tile(j));
      values[s] = elements[lists.offsets[j]];
    }
  });
}

// A block sums the lengths of a server's runs.
__global__ void __launch_bounds__(kThreads, 2) scan_runs(const __grid_constant__ RunsParams params) {
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  const int64_t of_server = blockIdx.x * params.chunks;
  uint32_t through = 0;
  for (int64_t first = 0; first < params.chunks; first += kThreads * kRowsPerWarp) {
    const int64_t mine = first + warp_id() * kRowsPerWarp * kWarpSize + lane_id();
    uint32_t before[kRowsPerWarp], warp_total = 0;
#pragma unroll
    for (int row = 0; row < kRowsPerWarp; ++row) {
      const int64_t chunk = mine + row * kWarpSize;
      before[row] = chunk < params.chunks ? params.runs[of_server + chunk] & 0xffffu : 0;
    }
#pragma unroll
    for (int row = 0; row < kRowsPerWarp; ++row) {
      const uint32_t count = before[row], inclusive = warp_inclusive_sum(count);
      before[row] = warp_total + inclusive - count;
      warp_total += __shfl_sync(kFullWarp, inclusive, kWarpSize - 1);
    }
    const BlockSum sum = block_exclusive_sum(lane_id() == kWarpSize - 1 ? warp_total : 0, warp_totals);
#pragma unroll
    for (int row = 0; row < kRowsPerWarp; ++row) {
      const int64_t chunk = mine + row * kWarpSize;
      if (chunk < params.chunks) params.before[of_server + chunk] = through + sum.before + before[row];
    }
    through += sum.total;
    __syncthreads();
  }
  if (threadIdx.x == 0) params.counts[blockIdx.x] = static_cast<int32_t>(through);
}

// A few lanes move a server's runs of consecutive chunks. The next lanes move the next chunks' runs, so that a warp
// writes to consecutive slots.
template <typename Bits>
__global__ void __launch_bounds__(kThreads) move_runs(const __grid_constant__ RunsParams params) {
  const uint32_t chunks = static_cast<uint32_t>(params.chunks), groups = (chunks + kRunsAtOnce - 1) / kRunsAtOnce;
  const uint32_t lanes = 1u << params.log_lanes, lane = threadIdx.x & (lanes - 1);
  const int64_t id = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> params.log_lanes;
  const uint32_t bucket = static_cast<uint32_t>(id) / groups;  // of all items
  if (bucket >= params.problem.batch * params.servers) return;
  const uint32_t item = bucket / params.servers;
  const uint32_t first_chunk = (static_cast<uint32_t>(id) - bucket * groups) * kRunsAtOnce;
  uint32_t run[kRunsAtOnce], before[kRunsAtOnce];
  ChunkHead head[kRunsAtOnce];
#pragma unroll
  for (int i = 0; i < kRunsAtOnce; ++i) {
    run[i] = 0;
    if (first_chunk + i >= chunks) continue;
    run[i] = params.runs[int64_t{bucket} * chunks + first_chunk + i];
    before[i] = params.before[int64_t{bucket} * chunks + first_chunk + i];
    head[i] = params.heads[int64_t{item} * chunks + first_chunk + i];
  }
  const uint32_t capacity = static_cast<uint32_t>(params.problem.capacity);
#pragma unroll
  for (int i = 0; i < kRunsAtOnce; ++i) {
    if (run[i] == 0 || before[i] >= capacity || head[i].from == kUnlisted) continue;
    const uint32_t from = head[i].from + (run[i] >> 16), count = min(run[i] & 0xffffu, capacity - before[i]);
    const uint16_t* const tiles = params.list_tiles + from;
    const Bits* const values = static_cast<const Bits*>(params.list_values) + from;
    const int64_t slot = int64_t{bucket} * capacity + before[i];
    int32_t* const to_positions = params.positions + slot;
    Bits* const to_values = static_cast<Bits*>(params.values) + slot;
    for (uint32_t e = lane; e < count; e += 2 * lanes) {
      const bool two = e + lanes < count;
      const uint32_t tile = tiles[e], second_tile = two ? tiles[e + lanes] : 0;
      const Bits value = values[e], second_value = two ? values[e + lanes] : Bits{0};
      to_positions[e] = static_cast<int32_t>(head[i].tile + tile);
      to_values[e] = value;
      if (!two) continue;
      to_positions[e + lanes] = static_cast<int32_t>(head[i].tile + second_tile);
      to_values[e + lanes] = second_value;
    }
  }
}

// Sorts the chunks that are not in the list again and moves their runs.
template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) move_unlisted(const __grid_constant__ RunsParams params) {
  if (*params.listed <= params.room) return;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  ElementsShared<Bits> shared(arena, params);
  const SortShared& lists = shared.lists;
  const int64_t capacity = params.problem.capacity;
  const uint32_t chunks = static_cast<uint32_t>(params.problem.batch * params.chunks);
  for (uint32_t i = blockIdx.x; i < chunks; i += params.blocks_for_unlisted) {
    if (params.heads[i].from != kUnlisted) continue;
    const ChunkId id(i, params.chunks);
    sort_chunk(params, id, &shared, [](uint32_t) {}, [&](const auto& units, const auto& elements, uint32_t nonzeros) {
      for (uint32_t s = threadIdx.x; s < nonzeros; s += kThreads) {
        const uint32_t j = lists.order[s];
        const UnitPlace place = units.place(j);
        const int64_t slot = int64_t{params.before[id.run(params, place.server)]} + s - lists.starts[place.server];
        if (slot >= capacity) continue;
        const int64_t to = (int64_t{id.item} * params.servers + place.server) * capacity + slot;
        params.positions[to] = static_cast<int32_t>(place.tile);
        static_cast<Bits*>(params.values)[to] = elements[lists.offsets[j]];
      }
    });
  }
}

// Bytes of an array of scratch memory, which a batch repeats.
int64_t array_bytes(int64_t count, int64_t size) { return ceil_div(count * size, 16) * 16; }

int64_t chunks_of(int64_t units, int64_t element_bytes) {
  return ceil_div(units, elements_per_chunk<StagedChunk>(element_bytes));
}

// So many lanes that a run takes about one step, if the buckets become full.
int log_lanes_per_run(const DenseParams& params) {
  int log_lanes = 1;
  while (1 << log_lanes < kWarpSize && params.chunks << log_lanes < params.problem.capacity) ++log_lanes;
  return log_lanes;
}

template <typename Bits>
cudaError_t launch_runs(const RunsParams& params, cudaStream_t stream) {
  const int64_t chunks = params.problem.batch * params.chunks, buckets = params.problem.batch * params.problem.n;
  const size_t sorting = shared_bytes<ListingShared<Bits>>(params), moving = shared_bytes<ElementsShared<Bits>>(params);
  ZEN_RETURN_IF_ERROR(cudaMemsetAsync(params.listed, 0, sizeof(*params.listed), stream));
  ZEN_RETURN_IF_ERROR(launch(sort_chunks<Bits>, chunks, sorting, stream, params));
  ZEN_RETURN_IF_ERROR(launch(scan_runs, buckets, kWarps * sizeof(uint32_t), stream, params));
  const int64_t movers = buckets * ceil_div(params.chunks, kRunsAtOnce);
  ZEN_RETURN_IF_ERROR(
      launch(move_runs<Bits>, ceil_div(movers << params.log_lanes, kThreads), 0, stream, params));
  return launch(move_unlisted<Bits>, params.blocks_for_unlisted, moving, stream, params);
}

}  // namespace

bool suits_runs(const PartitionProblem& problem) {
  const int64_t slots = problem.n * problem.capacity, most = std::numeric_limits<int32_t>::max();
  // The list and the runs are numbered with 32 bits.
  return problem.width == 1 && problem.n <= kMostServers && slots * kLeastUnitsPerSlot <= problem.units &&
         slots * kMostUnitsPerSlot >= problem.units &&
         problem.batch * slots <= most && problem.batch * problem.n * chunks_of(problem.units, 8) <= most;
}

int64_t runs_scratch_bytes(int64_t units, int64_t element_bytes, int64_t n, int64_t capacity) {
  const int64_t chunks = chunks_of(units, element_bytes), room = n * capacity;
  return array_bytes(1, sizeof(unsigned long long)) + array_bytes(chunks, sizeof(ChunkHead)) +
         2 * array_bytes(n * chunks, sizeof(uint32_t)) + array_bytes(room, element_bytes) +
         array_bytes(room, sizeof(uint16_t));
}

cudaError_t partition_runs(const DenseParams& dense, Element element, int multiprocessors, void* d_scratch,
                           cudaStream_t stream) {
  const PartitionProblem& problem = dense.problem;
  RunsParams params;
  static_cast<DenseParams&>(params) = dense;
  const int64_t room = problem.batch * problem.n * problem.capacity;
  params.room = static_cast<uint32_t>(room);
  params.log_lanes = log_lanes_per_run(dense);
  params.blocks_for_unlisted = static_cast<uint32_t>(kBlocksForUnlisted * multiprocessors);
  char* scratch = static_cast<char*>(d_scratch);
  const auto take = [&](auto** array, int64_t count, int64_t size) {
    *array = reinterpret_cast<std::remove_reference_t<decltype(*array)>>(scratch);
    scratch += array_bytes(count, size);
  };
  const int64_t runs = problem.batch * problem.n * dense.chunks;
  take(&params.listed, 1, sizeof(*params.listed));
  take(&params.heads, problem.batch * dense.chunks, sizeof(*params.heads));
  take(&params.runs, runs, sizeof(*params.runs));
  take(&params.before, runs, sizeof(*params.before));
  take(&params.list_values, room, element_bytes(element));
  take(&params.list_tiles, room, sizeof(*params.list_tiles));
  return visit_bits(element, [&](auto bits) { return launch_runs<decltype(bits)>(params, stream); });
}

}  // namespace zen::cuda
