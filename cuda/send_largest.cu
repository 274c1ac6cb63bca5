#include "cuda/send_largest.h"

#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/feedback.cuh"
#include "cuda/threshold.cuh"
#include "cuda/vectors.cuh"

namespace zen::cuda {
namespace {

// A thread's vectors in flight, and the share of elements that may be candidates.
constexpr int64_t kVectorsPerThread = 4;
constexpr int64_t kCandidateShare = 16;

// ---- the sample ----

template <typename Update>
__global__ void __launch_bounds__(kThreads) start(const __grid_constant__ Params<Update> params) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  const LargestBounds& bounds = params.bounds[item];
  const int64_t sampled = params.chunks * kSampleChunk;
  state.ranks[0].start(sampled, bounds.below, -1);
  state.ranks[1].start(sampled, bounds.above, -1);
  state.threshold.start(params.problem.size, bounds.least, bounds.most);
  state.left_out = state.candidates_hold = 0;
  state.low = state.high = 0;
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) take_sample(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t sampled = params.chunks * kSampleChunk, item = id / sampled, chunk = id % sampled / kSampleChunk;
  if (item >= params.problem.batch) return;
  const int64_t stretch = params.problem.size / params.chunks;
  const uint32_t places = static_cast<uint32_t>(stretch - kSampleChunk + 1);
  const int64_t begin = chunk * stretch + reduce_to_range(murmur3(static_cast<uint32_t>(chunk), 0), places);
  const int64_t i = item * params.problem.size + begin + id % kSampleChunk;
  Sum moved = 0;
  const Sum velocity = params.velocity == nullptr ? Sum{0} : params.velocity[i];
  params.sample[id] =
      key_of(bits_of(params.total(params.update[i], params.residual[i], velocity, params.scale[item], &moved)));
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) search_sample(const __grid_constant__ Params<Update> params) {
  using Bits = typename Params<Update>::Bits;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  const int64_t item = params.item() / 2, sampled = params.chunks * kSampleChunk;
  Search<Bits>& search = params.states[item].ranks[params.item() % 2];
  if (search.done) return;
  const Bits* const keys = params.sample + item * sampled;
  uint32_t counts[kProbes] = {};
  for (int64_t i = params.first_thread(); i < sampled; i += params.threads()) {
#pragma unroll
    for (int p = 0; p < kProbes; ++p) counts[p] += keys[i] >= search.probes[p];
  }
  if (add_reach(&search, counts, params.blocks, warp_totals)) search.narrow();
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) set_bracket(const __grid_constant__ Params<Update> params) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  state.threshold.probe_from(state.ranks[0].low, state.ranks[1].low);
  state.low = state.threshold.probes[0];
  state.high = state.threshold.probes[kProbes - 1];
}

// ---- the gradient ----

// The first pass: totals and velocities, how many keys reach the first probes, and a list of those between them.
template <typename Update>
__global__ void __launch_bounds__(kThreads) accumulate(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  using Bits = typename Params<Update>::Bits;
  constexpr int kSize = kVectorBytes / static_cast<int>(sizeof(Sum));
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  uint32_t* const listed = arena.take<uint32_t>(1);
  if (threadIdx.x == 0) *listed = 0;
  __syncthreads();

  const int64_t item = params.item(), size = params.problem.size, base = item * size;
  Bits* const list = params.block_list();
  const uint32_t room = static_cast<uint32_t>(params.block_room());
  State<Bits>& state = params.states[item];
  const Bits low = state.low, high = state.high;
  const Sum scale = params.scale[item];
  const bool aligned = base % kSize == 0 && is_aligned(params.update) && is_aligned(params.residual) &&
                       is_aligned(params.velocity) && is_aligned(params.new_residual) &&
                       is_aligned(params.new_velocity);
  Bits probes[kProbes];
  uint32_t counts[kProbes] = {};
#pragma unroll
  for (int p = 0; p < kProbes; ++p) probes[p] = state.threshold.probes[p];
  for (int64_t i = params.first_thread() * kSize; i < size; i += params.threads() * kSize) {
    const int64_t left = size - i;
    const Pack<Stored, kSize> update = load_pack<kSize>(params.update + base + i, left, aligned);
    Pack<Sum, kSize> total = load_pack<kSize>(params.residual + base + i, left, aligned), velocity = {};
    if (params.velocity != nullptr) velocity = load_pack<kSize>(params.velocity + base + i, left, aligned);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      total.at[k] = params.total(update.at[k], total.at[k], velocity.at[k], scale, &velocity.at[k]);
      if (k >= left) continue;
      const Bits key = key_of(bits_of(total.at[k]));
#pragma unroll
      for (int p = 0; p < kProbes; ++p) counts[p] += key >= probes[p];
      if (key < low || key >= high) continue;
      const uint32_t place = atomicAdd(listed, 1u);
      if (place < room) list[place] = key;
    }
    store_pack<kSize>(params.new_residual + base + i, total, left, aligned);
    if (params.velocity != nullptr) store_pack<kSize>(params.new_velocity + base + i, velocity, left, aligned);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *params.block_count() = *listed < room ? *listed : room;
    if (*listed > room) atomicAdd(&state.left_out, *listed - room);
  }
  Search<Bits>& search = state.threshold;
  if (search.done || !add_reach(&search, counts, params.blocks, warp_totals)) return;
  state.above = search.reach[kProbes - 1];
  const bool inside = search.reach[0] >= search.least && state.above < search.least;
  state.candidates_hold = inside && low < high && state.left_out == 0;
  search.narrow();
}

// A later pass: over the candidates, if the threshold is one, else over all totals.
template <typename Update>
__global__ void __launch_bounds__(kThreads) search_threshold(const __grid_constant__ Params<Update> params) {
  using Bits = typename Params<Update>::Bits;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  const int64_t item = params.item();
  State<Bits>& state = params.states[item];
  Search<Bits>& search = state.threshold;
  if (search.done) return;
  const bool listed = state.candidates_hold;
  const Bits* const totals = reinterpret_cast<const Bits*>(params.new_residual) + item * params.problem.size;
  const Bits* const bits = listed ? params.block_list() : totals;
  const int64_t size = listed ? static_cast<int64_t>(*params.block_count()) : params.problem.size;
  const int64_t first = listed ? threadIdx.x : params.first_thread(), step = listed ? kThreads : params.threads();
  Bits probes[kProbes];
  uint32_t counts[kProbes] = {};
#pragma unroll
  for (int p = 0; p < kProbes; ++p) probes[p] = search.probes[p];
  for (int64_t i = first; i < size; i += step) {
    const Bits key = key_of(bits[i]);
#pragma unroll
    for (int p = 0; p < kProbes; ++p) counts[p] += key >= probes[p];
  }
  if (!add_reach(&search, counts, params.blocks, warp_totals)) return;
  for (int p = 0; listed && p < kProbes; ++p) search.reach[p] += state.above;
  search.narrow();
}

// Whether equals at the threshold are too many; then those of lowest index are sent.
template <typename Update>
__global__ void __launch_bounds__(kThreads) start_ties(const __grid_constant__ Params<Update> params) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  const int32_t wanted = state.threshold.least - state.threshold.reach_high;
  state.ties.start(params.problem.size, wanted, wanted);
  if (state.threshold.reach_low <= state.threshold.most || state.threshold.low == 0) {
    state.ties.done = true;
    state.ties.low = 0;
  }
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) search_ties(const __grid_constant__ Params<Update> params) {
  using Bits = typename Params<Update>::Bits;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  const int64_t item = params.item(), size = params.problem.size;
  State<Bits>& state = params.states[item];
  if (state.ties.done) return;
  const Bits* const bits = reinterpret_cast<const Bits*>(params.new_residual) + item * size;
  uint32_t counts[kProbes] = {};
  for (int64_t i = params.first_thread(); i < size; i += params.threads()) {
    const uint32_t key = key_of(bits[i]) == state.threshold.low ? static_cast<uint32_t>(size - i) : 0;
#pragma unroll
    for (int p = 0; p < kProbes; ++p) counts[p] += key >= state.ties.probes[p];
  }
  if (add_reach(&state.ties, counts, params.blocks, warp_totals)) state.ties.narrow();
}

// The last pass: writes all of what is sent, and of residual and velocity the vectors that lose something.
template <typename Update>
__global__ void __launch_bounds__(kThreads) split(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  using Bits = typename Params<Update>::Bits;
  constexpr int kSize = kVectorBytes / static_cast<int>(sizeof(Sum));
  constexpr Bits kInfinity = BitsOf<Sum>::kInfinity;
  const int64_t item = params.item(), size = params.problem.size, base = item * size;
  const State<Bits>& state = params.states[item];
  const Bits threshold = state.threshold.low;
  const uint32_t last_tie = state.ties.low;
  const bool aligned = base % kSize == 0 && is_aligned(params.new_residual) && is_aligned(params.sent);
  for (int64_t i = params.first_thread() * kSize; i < size; i += params.threads() * kSize) {
    const int64_t left = size - i;
    Pack<Sum, kSize> total = load_pack<kSize>(params.new_residual + base + i, left, aligned);
    Pack<Stored, kSize> sent = {};
    uint32_t chosen = 0;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const Bits key = key_of(bits_of(total.at[k]));
      const bool tie = key == threshold && static_cast<uint32_t>(size - i - k) >= last_tie;
      if (k >= left || !(key > threshold || tie || key >= kInfinity)) continue;
      const Sum part = part_of(total.at[k], Update{});
      sent.at[k] = Update::round(part);
      total.at[k] = key < kInfinity ? total.at[k] - part : Sum{0};
      chosen |= 1u << k;
    }
    store_pack<kSize>(params.sent + base + i, sent, left, aligned);
    if (chosen == 0) continue;
    store_pack<kSize>(params.new_residual + base + i, total, left, aligned);
    if (params.velocity == nullptr) continue;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (chosen >> k & 1) params.new_velocity[base + i + k] = 0;
    }
  }
}

template <typename Update>
cudaError_t run(Params<Update> params, cudaStream_t stream) {
  using Bits = typename Params<Update>::Bits;
  constexpr int64_t kSize = kVectorBytes / static_cast<int64_t>(sizeof(Bits));
  constexpr size_t kShared = (kWarps + 4) * sizeof(uint32_t);
  const FeedbackProblem& problem = params.problem;
  const auto blocks_for = [&](int64_t elements, int64_t items) {
    return std::clamp<int64_t>(ceil_div(elements, kThreads * kSize * kVectorsPerThread), 1,
                               std::max<int64_t>(1, kResidentBlocks / items));
  };
  const int64_t per_item = ceil_div(problem.batch, kThreads), sampled = params.chunks * kSampleChunk;
  ZEN_RETURN_IF_ERROR(launch(start<Update>, per_item, 0, stream, params));
  if (params.chunks > 0) {
    ZEN_RETURN_IF_ERROR(
        launch(take_sample<Update>, ceil_div(problem.batch * sampled, kThreads), 0, stream, params));
    params.blocks = static_cast<uint32_t>(blocks_for(sampled, 2 * problem.batch));
    for (int pass = 0; pass < kMostPasses<Bits>; ++pass) {
      ZEN_RETURN_IF_ERROR(
          launch(search_sample<Update>, 2 * problem.batch * params.blocks, kShared, stream, params));
    }
    ZEN_RETURN_IF_ERROR(launch(set_bracket<Update>, per_item, 0, stream, params));
  }
  params.blocks = static_cast<uint32_t>(blocks_for(problem.size, problem.batch));
  const int64_t blocks = problem.batch * params.blocks;
  ZEN_RETURN_IF_ERROR(launch(accumulate<Update>, blocks, kShared, stream, params));
  for (int pass = 0; pass < kMostPasses<Bits>; ++pass) {
    ZEN_RETURN_IF_ERROR(launch(search_threshold<Update>, blocks, kShared, stream, params));
  }
  ZEN_RETURN_IF_ERROR(launch(start_ties<Update>, per_item, 0, stream, params));
  for (int pass = 0; pass < kMostPasses<uint32_t>; ++pass) {
    ZEN_RETURN_IF_ERROR(launch(search_ties<Update>, blocks, kShared, stream, params));
  }
  return launch(split<Update>, blocks, 0, stream, params);
}

// The parts of a call's scratch, one behind the other for the whole batch.
struct Scratch {
  int64_t sum_bytes, sampled, room;

  Scratch(int64_t size, int64_t element_bytes, int64_t chunks)
      : sum_bytes(std::max<int64_t>(element_bytes, 4)),
        sampled(chunks * kSampleChunk),
        room(chunks > 0 ? size / kCandidateShare : 0) {}

  int64_t state_bytes() const { return sum_bytes == 8 ? sizeof(State<uint64_t>) : sizeof(State<uint32_t>); }
  int64_t bytes() const { return state_bytes() + (sampled + room) * sum_bytes + kResidentBlocks * 4; }
};

}  // namespace

int64_t send_largest_scratch_bytes(int64_t size, int64_t element_bytes, int64_t chunks) {
  return Scratch(size, element_bytes, chunks).bytes();
}

cudaError_t send_largest(const FeedbackProblem& problem, Element element, const SendLargestArrays& d_arrays,
                         const LargestBounds* d_bounds, const void* d_scale, double momentum, int64_t chunks,
                         void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0 || problem.size == 0) return cudaSuccess;
  const Scratch scratch(problem.size, element_bytes(element), chunks);
  unsigned char* const states = static_cast<unsigned char*>(d_scratch);
  unsigned char* const sample = states + problem.batch * scratch.state_bytes();
  const auto run_as = [&](auto update) {
    using Update = decltype(update);
    using Sum = typename Update::Sum;
    using Stored = typename Update::Stored;
    using Bits = typename Params<Update>::Bits;
    Params<Update> params;
    params.problem = problem;
    params.chunks = chunks;
    params.room = scratch.room;
    params.blocks = 0;
    params.momentum = static_cast<Sum>(momentum);
    params.update = static_cast<const Stored*>(d_arrays.update);
    params.residual = static_cast<const Sum*>(d_arrays.residual);
    params.velocity = static_cast<const Sum*>(d_arrays.velocity);
    params.sent = static_cast<Stored*>(d_arrays.sent);
    params.new_residual = static_cast<Sum*>(d_arrays.new_residual);
    params.new_velocity = static_cast<Sum*>(d_arrays.new_velocity);
    params.bounds = d_bounds;
    params.scale = static_cast<const Sum*>(d_scale);
    params.states = reinterpret_cast<State<Bits>*>(states);
    params.sample = reinterpret_cast<Bits*>(sample);
    params.listed = params.sample + problem.batch * scratch.sampled;
    params.listed_counts = reinterpret_cast<uint32_t*>(params.listed + problem.batch * scratch.room);
    return run(params, stream);
  };
  switch (element) {
    case Element::kFloat64:
      return run_as(Float64{});
    case Element::kFloat16:
      return run_as(Float16{});
    case Element::kBfloat16:
      return run_as(Bfloat16{});
    default:
      return run_as(Float32{});
  }
}

}  // namespace zen::cuda
