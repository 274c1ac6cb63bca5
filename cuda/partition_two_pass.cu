#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/launch.cuh"
#include "cuda/partition_two_pass.h"

namespace zen::cuda {
namespace {

// Enough threads to keep a GPU busy: a server's tiles are cut into as many segments as that takes.
constexpr int64_t kWantedThreads = 1 << 18;
constexpr int64_t kMaxSegments = 256;

struct Segments {
  int64_t count;
  int64_t tiles;  // of one segment
};

Segments cut(int64_t units, int64_t n) {
  const int64_t tiles = ceil_div(units, n);
  const int64_t wanted = std::clamp(kWantedThreads / n, int64_t{1}, std::min(tiles, kMaxSegments));
  const int64_t per_segment = ceil_div(tiles, wanted);
  return {ceil_div(tiles, per_segment), per_segment};
}

struct TwoPassParams {
  PartitionProblem problem;
  Segments segments;
  uint32_t seed;
  const void* x;
  int32_t* positions;
  void* values;
  int32_t* counts;
  uint32_t* segment_counts;  // [batch, segments, n]: first counts, then how many of the server's units come before
};

// What one thread works on. The server varies fastest over the threads.
struct Walk {
  int64_t id;  // in segment_counts
  int64_t batch;
  int64_t segment;
  uint32_t server;
  bool active;

  __device__ explicit Walk(const TwoPassParams& params) : id(int64_t{blockIdx.x} * kThreads + threadIdx.x) {
    const int64_t item = id / params.problem.n;
    server = static_cast<uint32_t>(id - item * params.problem.n);
    batch = item / params.segments.count;
    segment = item - batch * params.segments.count;
    active = batch < params.problem.batch;
  }
};

// Calls visit(tile, row) for the walk's non-zero units by ascending tile.
template <typename Bits, typename Visit>
__device__ void visit_nonzeros(const TwoPassParams& params, const Walk& walk, Visit visit) {
  const PartitionProblem& problem = params.problem;
  const uint32_t n = static_cast<uint32_t>(problem.n);
  const Bits* const x = static_cast<const Bits*>(params.x) + walk.batch * problem.units * problem.width;
  const int64_t begin = walk.segment * params.segments.tiles;
  for (int64_t tile = begin; tile < begin + params.segments.tiles; ++tile) {
    const uint32_t rotation = tile_rotation(static_cast<uint32_t>(tile), n, params.seed);
    const int64_t unit = tile * n + offset_in_tile(walk.server, rotation, n);
    if (unit >= problem.units) continue;
    const Bits* const row = x + unit * problem.width;
    bool nonzero = false;
    for (int64_t i = 0; i < problem.width && !nonzero; ++i) nonzero = is_nonzero(row[i]);
    if (nonzero) visit(static_cast<int32_t>(tile), row);
  }
}

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) count_segments(const __grid_constant__ TwoPassParams params) {
  const Walk walk(params);
  if (!walk.active) return;
  uint32_t count = 0;
  visit_nonzeros<Bits>(params, walk, [&](int32_t, const Bits*) { ++count; });
  params.segment_counts[walk.id] = count;
}

__global__ void __launch_bounds__(kThreads, 2) scan_segments(const __grid_constant__ TwoPassParams params) {
  const int64_t n = params.problem.n;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t batch = id / n;
  if (batch >= params.problem.batch) return;
  uint32_t* const column = params.segment_counts + batch * params.segments.count * n + (id - batch * n);
  uint32_t sum = 0;
  for (int64_t segment = 0; segment < params.segments.count; ++segment) {
    const uint32_t count = column[segment * n];
    column[segment * n] = sum;
    sum += count;
  }
  params.counts[id] = static_cast<int32_t>(sum);
}

template <typename Bits>
__global__ void __launch_bounds__(kThreads, 2) write_segments(const __grid_constant__ TwoPassParams params) {
  const Walk walk(params);
  if (!walk.active) return;
  const PartitionProblem& problem = params.problem;
  int64_t slot = params.segment_counts[walk.id];
  const int64_t bucket = (walk.batch * problem.n + walk.server) * problem.capacity;
  Bits* const values = static_cast<Bits*>(params.values);
  visit_nonzeros<Bits>(params, walk, [&](int32_t tile, const Bits* row) {
    if (slot < problem.capacity) {
      params.positions[bucket + slot] = tile;
      Bits* const to = values + (bucket + slot) * problem.width;
      for (int64_t i = 0; i < problem.width; ++i) to[i] = row[i];
    }
    ++slot;
  });
}

template <typename Bits>
cudaError_t launch_all(const TwoPassParams& params, cudaStream_t stream) {
  const int64_t servers = params.problem.batch * params.problem.n;
  const int64_t blocks = ceil_div(servers * params.segments.count, kThreads);
  ZEN_RETURN_IF_ERROR(launch(count_segments<Bits>, blocks, 0, stream, params));
  ZEN_RETURN_IF_ERROR(launch(scan_segments, ceil_div(servers, kThreads), 0, stream, params));
  return launch(write_segments<Bits>, blocks, 0, stream, params);
}

}  // namespace

int64_t two_pass_scratch_bytes(int64_t units, int64_t n) { return cut(units, n).count * n * int64_t{sizeof(uint32_t)}; }

cudaError_t partition_two_pass(const PartitionProblem& problem, Element element, uint32_t seed, const void* d_x,
                               int32_t* d_positions, void* d_values, int32_t* d_counts, void* d_scratch,
                               cudaStream_t stream) {
  const TwoPassParams params = {problem,  cut(problem.units, problem.n),    seed, d_x, d_positions, d_values,
                                d_counts, static_cast<uint32_t*>(d_scratch)};
  return visit_bits(element, [&](auto bits) { return launch_all<decltype(bits)>(params, stream); });
}

}  // namespace zen::cuda
