// Reads and writes the gradient once where a sample foretells the threshold: keys above its bracket are sent at once,
// those within are logged with them, and the log tells which were meant. Where it cannot, what was sent is taken back
// and the totals themselves are searched.
#include "cuda/send_largest.h"

#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "cuda/feedback.cuh"
#include "cuda/picks.cuh"
#include "cuda/threshold.cuh"

namespace zen::cuda {
namespace {

// Keys of a thread in a search, packs of each array that a thread loads before it stores any, and the share of elements
// that the log has room for.
constexpr int64_t kKeysPerThread = 16;
constexpr int kPacksInFlight = 2;
constexpr int64_t kLoggedShare = 16;

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
  state.uses_log = 0;
  params.logging.count[item] = 0;
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
  const SearchShared<Bits> shared(arena);
  const int64_t search_id = blockIdx.x / params.blocks, item = search_id / 2;
  Search<Bits>& search = params.states[item].ranks[search_id % 2];
  if (search.done) return;
  const int64_t sampled = params.chunks * kSampleChunk;
  const bool is_last = count_reach(&search, shared, params.sample + item * sampled, sampled,
                                   blockIdx.x % params.blocks, params.blocks);
  if (is_last && threadIdx.x == 0) search.narrow(shared.probes, shared.counts);
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) set_bracket(const __grid_constant__ Params<Update> params) {
  constexpr auto kInfinity = BitsOf<typename Update::Sum>::kInfinity;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  const auto below = state.ranks[0].low, above = state.ranks[1].low;
  state.threshold.start_from(below, above);
  const auto highest = state.threshold.probe(kGaps * kGaps * kProbes - 1);
  state.logged_from = below < kInfinity ? below : kInfinity;
  state.sent_from = highest < kInfinity ? highest : kInfinity;
  const int64_t sampled = params.chunks * kSampleChunk;
  // Those above the key of rank `below`, as many as the sample foretells.
  const bool fits = params.bounds[item].below * params.problem.size <= params.log.room * sampled;
  state.uses_log = !state.threshold.done && below > 0 && fits;
}

// ---- the gradient ----

// The pass over the gradient: writes totals and velocities, logs what reaches the bracket and sends what is above it.
template <typename Update>
__global__ void __launch_bounds__(kThreads, 2) accumulate(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  using Bits = typename Params<Update>::Bits;
  using Chunk = PackChunk<Sum>;
  constexpr int kSize = Chunk::kSize;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const CompactionShared shared(arena);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);

  const CompactionBlock block(params.logging, shared);
  const int64_t size = params.problem.size, base = block.batch * size;
  const State<Bits>& state = params.states[block.batch];
  const Bits logged_from = state.uses_log ? state.logged_from : kTopKey<Bits>;
  const Sum scale = params.scale[block.batch];
  const bool aligned = base % kSize == 0 && is_aligned(params.update) && is_aligned(params.residual) &&
                       is_aligned(params.velocity) && is_aligned(params.sent) && is_aligned(params.new_residual) &&
                       is_aligned(params.new_velocity);
  uint32_t logged = 0;
#pragma unroll
  for (int first = 0; first < Chunk::kPacks; first += kPacksInFlight) {
    FloatPack<Stored, kSize> update[kPacksInFlight];
    FloatPack<Sum, kSize> total[kPacksInFlight], velocity[kPacksInFlight] = {};
#pragma unroll
    for (int p = 0; p < kPacksInFlight; ++p) {
      const int64_t i = Chunk::element(block.chunk, (first + p) * kSize), left = size - i;
      update[p] = load_pack<kSize>(params.update + base + i, left, aligned);
      total[p] = load_pack<kSize>(params.residual + base + i, left, aligned);
      if (params.velocity != nullptr) velocity[p] = load_pack<kSize>(params.velocity + base + i, left, aligned);
    }
#pragma unroll
    for (int p = 0; p < kPacksInFlight; ++p) {
      const int64_t i = Chunk::element(block.chunk, (first + p) * kSize), left = size - i;
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        Sum& sum = total[p].at[k];
        sum = params.total(update[p].at[k], sum, velocity[p].at[k], scale, &velocity[p].at[k]);
        if (k < left && key_of(bits_of(sum)) >= logged_from) logged |= 1u << ((first + p) * kSize + k);
      }
      store_pack<kSize>(params.new_residual + base + i, total[p], left, aligned);
      if (params.velocity != nullptr) store_pack<kSize>(params.new_velocity + base + i, velocity[p], left, aligned);
      if (params.sent != nullptr) store_pack<kSize>(params.sent + base + i, FloatPack<Stored, kSize>{}, left, aligned);
    }
  }
  if (!state.uses_log) return;

  const PickedRanks<Chunk> ranks(logged, warp_totals);
  block.announce(ranks.total);
  const Bits sent_from = state.sent_from;
  const int64_t before = block.place(ranks.total), entries = block.batch * params.log.room;
  ranks.for_each(logged, [&](uint32_t rank, int bit) {
    if (before + rank >= params.log.room) return;
    const int64_t i = Chunk::element(block.chunk, bit), at = entries + before + rank;
    const Sum total = params.new_residual[base + i];
    params.log.index[at] = static_cast<uint32_t>(i);
    params.log.total[at] = total;
    if (params.velocity != nullptr) params.log.velocity[at] = params.new_velocity[base + i];
    if (key_of(bits_of(total)) >= sent_from) params.send(base + i, total);
  });
}

// A pass of the search: over the log if that holds the threshold, else over all totals.
template <typename Update>
__global__ void __launch_bounds__(kThreads) search_threshold(const __grid_constant__ Params<Update> params) {
  using Bits = typename Params<Update>::Bits;
  constexpr int kLowestOfFirstStep = kGaps * kGaps - 1;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const SearchShared<Bits> shared(arena);
  const int64_t item = blockIdx.x / params.blocks;
  State<Bits>& state = params.states[item];
  Search<Bits>& search = state.threshold;
  if (search.done) return;
  const bool uses_log = state.uses_log, first_pass = search.from_sample;
  const int64_t count = uses_log ? params.logged(item) : params.problem.size;
  const void* const floats =
      uses_log ? params.log.total + item * params.log.room : params.new_residual + item * params.problem.size;
  const bool is_last = count_reach(&search, shared, static_cast<const Bits*>(floats), count,
                                   blockIdx.x % params.blocks, params.blocks);
  if (!is_last || threadIdx.x != 0) return;
  const bool found_elsewhere = params.logging.count[item] > params.log.room ||
                               static_cast<int32_t>(shared.counts[kLowestOfFirstStep]) < search.least;
  if (uses_log && first_pass && found_elsewhere) {
    state.uses_log = 0;
  } else {
    search.narrow(shared.probes, shared.counts);
  }
}

// Takes back what was sent by a log that does not hold the threshold.
template <typename Update>
__global__ void __launch_bounds__(kThreads) take_back(const __grid_constant__ Params<Update> params) {
  const int64_t item = blockIdx.x / params.blocks;
  const auto& state = params.states[item];
  if (state.uses_log) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x % params.blocks) * kThreads + threadIdx.x;
  const int64_t entries = item * params.log.room, logged = params.logged(item);
  for (int64_t at = entries + first; at < entries + logged; at += static_cast<int64_t>(params.blocks) * kThreads) {
    if (key_of(bits_of(params.log.total[at])) < state.sent_from) continue;
    params.take_back(item * params.problem.size + params.log.index[at], at);
  }
}

// Sends what reaches the threshold, takes back what was sent and does not, and lists what is sent, if that is wanted.
// Of too many equals at the threshold those of lowest index are sent.
template <typename Update>
__global__ void __launch_bounds__(kThreads, 2) finish(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  using Bits = typename Params<Update>::Bits;
  using Chunk = PackChunk<Sum>;
  constexpr int kSize = Chunk::kSize;
  constexpr Bits kInfinity = BitsOf<Sum>::kInfinity;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const CompactionShared shared(arena);
  uint32_t* const warp_totals = arena.take<uint32_t>(kWarps);
  const bool lists = params.sent == nullptr;
  // What a chunk lists; without a list there is no memory for it.
  int32_t* const indices = arena.take<int32_t>(Chunk::kPerBlock);
  Stored* const values = arena.take<Stored>(Chunk::kPerBlock);
  for (;; __syncthreads()) {
    int64_t item = 0, count = 0, chunks = 0, chunk = take_ticket(params.listing.ticket, shared.ticket);
    for (; item < params.problem.batch; ++item, chunk -= chunks) {
      count = params.states[item].uses_log ? params.logged(item) : params.problem.size;
      chunks = ceil_div(count, Chunk::kPerBlock);
      if (chunk < chunks) break;
    }
    if (item == params.problem.batch) return;
    const State<Bits>& state = params.states[item];
    const Search<Bits>& search = state.threshold;
    const bool uses_log = state.uses_log;
    const Bits low = search.low, sent_from = uses_log ? state.sent_from : kTopKey<Bits>;
    const int64_t base = item * params.problem.size, entries = item * params.log.room;
    const Sum* const from = uses_log ? params.log.total + entries : params.new_residual + base;

    FloatPack<Sum, kSize> totals[Chunk::kPacks];
#pragma unroll
    for (int j = 0; j < Chunk::kPacks; ++j) {
      const int64_t at = Chunk::element(chunk, j * kSize);
      totals[j] = load_pack<kSize>(from + at, count - at, is_aligned(from));
    }
    uint32_t chosen = 0, equal = 0, gone = 0, listed = 0;
#pragma unroll
    for (int bit = 0; bit < Chunk::kPacks * kSize; ++bit) {
      const Sum total = totals[bit / kSize].at[bit % kSize];
      const Bits key = key_of(bits_of(total));
      const bool exists = Chunk::element(chunk, bit) < count;
      chosen |= static_cast<uint32_t>(exists && (key >= low || key >= kInfinity)) << bit;
      equal |= static_cast<uint32_t>(exists && key == low && key < kInfinity) << bit;
      gone |= static_cast<uint32_t>(exists && key >= sent_from) << bit;
      listed |= static_cast<uint32_t>(lists && is_nonzero(bits_of(part_of(total, Update{})))) << bit;
    }
    if (search.reach_low > search.most && low > 0) {
      const PickedRanks<Chunk> ranks(equal, warp_totals);
      const CompactionBlock block(params.ties, shared, item, chunk, chunks);
      block.announce(ranks.total);
      const int64_t before = block.place(ranks.total), wanted = search.least - search.reach_high;
      ranks.for_each(equal, [&](uint32_t rank, int bit) {
        if (before + rank >= wanted) chosen &= ~(1u << bit);
      });
    }

    const auto index_of = [&](int64_t at) -> int64_t { return uses_log ? params.log.index[entries + at] : at; };
    if (lists) {
      listed &= chosen;
      const PickedRanks<Chunk> ranks(listed, warp_totals);
      const CompactionBlock block(params.listing, shared, item, chunk, chunks);
      block.announce(ranks.total);
      ranks.for_each(listed, [&](uint32_t rank, int bit) {
        const int64_t at = Chunk::element(chunk, bit);
        indices[rank] = static_cast<int32_t>(index_of(at));
        values[rank] = Update::round(part_of(from[at], Update{}));
      });
      const int64_t before = block.place(ranks.total), slot = item * params.list.room + before;
      const uint32_t fitting = block.fitting(before, ranks.total);
      for (uint32_t s = threadIdx.x; s < fitting; s += kThreads) {
        params.list.indices[slot + s] = indices[s];
        params.list.values[slot + s] = values[s];
      }
    }
    for (uint32_t left = chosen ^ gone; left != 0; left &= left - 1) {
      const int bit = lowest_bit(left);
      const int64_t at = Chunk::element(chunk, bit), i = base + index_of(at);
      if (gone >> bit & 1) {
        params.take_back(i, entries + at);
      } else {
        params.send(i, from[at]);
      }
    }
  }
}

// The parts of a call's scratch, one behind the other for the whole batch: each starts at a multiple of 16 bytes.
template <typename Update>
class Scratch {
  using Sum = typename Update::Sum;
  using Bits = typename Params<Update>::Bits;

 public:
  // For measuring, `base` is null.
  Scratch(void* base, int64_t batch, int64_t size, int64_t chunks, bool moves, Params<Update>* params)
      : base_(static_cast<unsigned char*>(base)) {
    const int64_t room = chunks > 0 ? size / kLoggedShare / 4 * 4 : 0;
    const int64_t per_item = ceil_div(size, PackChunk<Sum>::kPerBlock);
    for (CompactionParams* compaction : {&params->logging, &params->ties, &params->listing}) {
      compaction->chunks = per_item;
      compaction->ticket = take<uint32_t>(kTicketBytes / sizeof(uint32_t));
      compaction->states = take<uint32_t>(batch * per_item);
    }
    zeroed_bytes_ = used_;
    params->logging.count = take<int32_t>(batch);
    params->ties.count = take<int32_t>(batch);
    params->states = take<State<Bits>>(batch);
    params->sample = take<Bits>(batch * chunks * kSampleChunk);
    params->log = {room, take<uint32_t>(batch * room), take<Sum>(batch * room), nullptr};
    if (moves) params->log.velocity = take<Sum>(batch * room);
  }

  int64_t zeroed_bytes() const { return zeroed_bytes_; }
  int64_t bytes() const { return used_; }

 private:
  template <typename T>
  T* take(int64_t count) {
    T* const part = reinterpret_cast<T*>(base_ + used_);
    used_ += ceil_div(count * static_cast<int64_t>(sizeof(T)), kVectorBytes) * kVectorBytes;
    return part;
  }

  unsigned char* base_;
  int64_t used_ = 0;
  int64_t zeroed_bytes_ = 0;
};

template <typename Update>
cudaError_t run(Params<Update> params, cudaStream_t stream) {
  using Sum = typename Update::Sum;
  using Bits = typename Params<Update>::Bits;
  const FeedbackProblem& problem = params.problem;
  const auto blocks_for = [&](int64_t keys, int64_t searches) {
    return static_cast<uint32_t>(std::clamp<int64_t>(ceil_div(keys, kThreads * kKeysPerThread), 1,
                                                     std::max<int64_t>(1, kResidentBlocks / searches)));
  };
  const size_t search_bytes = SearchShared<Bits>::bytes();
  SharedArena arena = SharedArena::for_measuring();
  CompactionShared shared(arena);
  arena.take<uint32_t>(kWarps);

  const int64_t per_item = ceil_div(problem.batch, kThreads), sampled = params.chunks * kSampleChunk;
  ZEN_RETURN_IF_ERROR(launch(start<Update>, per_item, 0, stream, params));
  if (params.chunks > 0) {
    ZEN_RETURN_IF_ERROR(launch(take_sample<Update>, ceil_div(problem.batch * sampled, kThreads), 0, stream, params));
    params.blocks = blocks_for(sampled, 2 * problem.batch);
    for (int pass = 0; pass < kMostPasses<Bits>; ++pass) {
      ZEN_RETURN_IF_ERROR(
          launch(search_sample<Update>, 2 * problem.batch * params.blocks, search_bytes, stream, params));
    }
    ZEN_RETURN_IF_ERROR(launch(set_bracket<Update>, per_item, 0, stream, params));
  }
  const int64_t chunks = problem.batch * params.logging.chunks;
  ZEN_RETURN_IF_ERROR(launch(accumulate<Update>, chunks, arena.used(), stream, params));
  params.blocks = blocks_for(problem.size, problem.batch);
  const int64_t blocks = problem.batch * params.blocks;
  // After a sample one more: the first may give up the log and leave the search where it was.
  const int passes = kMostPasses<Bits> + (params.chunks > 0);
  for (int pass = 0; pass < passes; ++pass) {
    ZEN_RETURN_IF_ERROR(launch(search_threshold<Update>, blocks, search_bytes, stream, params));
    if (pass == 0 && params.chunks > 0) ZEN_RETURN_IF_ERROR(launch(take_back<Update>, blocks, 0, stream, params));
  }
  if (params.sent == nullptr) {
    arena.take<int32_t>(PackChunk<Sum>::kPerBlock);
    arena.take<typename Update::Stored>(PackChunk<Sum>::kPerBlock);
  }
  return launch(finish<Update>, std::min(chunks, kResidentBlocks), arena.used(), stream, params);
}

// visit(update) with the type that sums elements as this one is summed.
template <typename Visit>
auto visit_update(Element element, Visit visit) {
  switch (element) {
    case Element::kFloat64:
      return visit(Float64{});
    case Element::kFloat16:
      return visit(Float16{});
    case Element::kBfloat16:
      return visit(Bfloat16{});
    default:
      return visit(Float32{});
  }
}

}  // namespace

int64_t send_largest_scratch_bytes(int64_t size, int64_t element_bytes, int64_t chunks, bool moves) {
  const auto bytes = [&](auto update) {
    Params<decltype(update)> params = {};
    return Scratch<decltype(update)>(nullptr, 1, size, chunks, moves, &params).bytes();
  };
  return element_bytes == 8 ? bytes(Float64{}) : bytes(Float32{});
}

cudaError_t send_largest(const FeedbackProblem& problem, Element element, const SendLargestArrays& d_arrays,
                         const LargestBounds* d_bounds, const void* d_scale, double momentum, int64_t chunks,
                         void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  const bool lists = d_arrays.sent == nullptr;
  if (problem.size == 0) {
    return lists ? cudaMemsetAsync(d_arrays.list.count, 0, problem.batch * sizeof(int32_t), stream) : cudaSuccess;
  }
  return visit_update(element, [&](auto update) {
    using Update = decltype(update);
    using Sum = typename Update::Sum;
    using Stored = typename Update::Stored;
    Params<Update> params = {};
    params.problem = problem;
    params.chunks = chunks;
    params.momentum = static_cast<Sum>(momentum);
    params.update = static_cast<const Stored*>(d_arrays.update);
    params.residual = static_cast<const Sum*>(d_arrays.residual);
    params.velocity = static_cast<const Sum*>(d_arrays.velocity);
    params.sent = static_cast<Stored*>(d_arrays.sent);
    params.list = {d_arrays.list.room, d_arrays.list.indices, static_cast<Stored*>(d_arrays.list.values),
                   d_arrays.list.count};
    params.new_residual = static_cast<Sum*>(d_arrays.new_residual);
    params.new_velocity = static_cast<Sum*>(d_arrays.new_velocity);
    params.bounds = d_bounds;
    params.scale = static_cast<const Sum*>(d_scale);
    const bool moves = params.velocity != nullptr;
    const Scratch<Update> scratch(d_scratch, problem.batch, problem.size, chunks, moves, &params);
    params.listing.capacity = params.list.room;
    params.listing.count = params.list.count;
    ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_scratch, 0, scratch.zeroed_bytes(), stream));
    return run(params, stream);
  });
}

}  // namespace zen::cuda
