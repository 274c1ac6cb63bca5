// Kernels that send the largest elements of a gradient. It is read and written once if a sample predicts the threshold:
// keys above its bracket are sent at once, those within it are logged with them, and the log tells which had to be
// sent. If the log cannot tell, what was sent is taken back and the totals themselves are searched.
#pragma once

#include <cstdint>

#include "cuda/bulk_copy.cuh"
#include "cuda/common/bits.h"
#include "cuda/common/keys.h"
#include "cuda/feedback.cuh"
#include "cuda/picks.cuh"
#include "cuda/threshold.cuh"

namespace zen::cuda {

// A block's chunk of a gradient in shared memory, where the results replace what they are made of.
template <typename Update>
struct ChunkArrays {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  static constexpr int kPerBlock = PackChunk<Sum>::kPerBlock;

  Stored* sent;   // the update at first
  Sum* total;     // the residual at first
  Sum* velocity;  // null without momentum

  __host__ __device__ ChunkArrays(SharedArena& arena, bool has_velocity)
      : sent(arena.take_lines<Stored>(kPerBlock)),
        total(arena.take_lines<Sum>(kPerBlock)),
        velocity(has_velocity ? arena.take_lines<Sum>(kPerBlock) : nullptr) {}

  // Whether the elements from `first` on can be moved in bulk.
  __device__ static bool fits_bulk(const Params<Update>& params, int64_t first, int count) {
    const auto aligned = [&](const auto* array) { return array == nullptr || is_aligned(array + first); };
    return count == kPerBlock && aligned(params.update) && aligned(params.residual) && aligned(params.velocity) &&
           aligned(params.sent) && aligned(params.new_residual) && aligned(params.new_velocity);
  }

  // Loads `count` elements from number `first` on. The others of the chunk become zero.
  __device__ void load(const Params<Update>& params, int64_t first, int count, const BulkLoads& loads) const {
    if (fits_bulk(params, first, count)) {
      const bool moves = velocity != nullptr;
      loads.expect(kPerBlock * (sizeof(Stored) + sizeof(Sum) * (moves ? 2 : 1)));
      loads.load(sent, params.update + first, kPerBlock * sizeof(Stored));
      loads.load(total, params.residual + first, kPerBlock * sizeof(Sum));
      if (moves) loads.load(velocity, params.velocity + first, kPerBlock * sizeof(Sum));
      loads.wait();
      return;
    }
    for (int i = threadIdx.x; i < kPerBlock; i += kThreads) {
      const bool exists = i < count;
      sent[i] = exists ? params.update[first + i] : Stored{};
      total[i] = exists ? params.residual[first + i] : Sum{0};
      if (velocity != nullptr) velocity[i] = exists ? params.velocity[first + i] : Sum{0};
    }
    __syncthreads();
  }

  // Stores the results. Starts with a barrier.
  __device__ void store(const Params<Update>& params, int64_t first, int count) const {
    barrier_before_bulk_store();
    if (fits_bulk(params, first, count)) {
      if (!params.list.is_wanted()) bulk_store(params.sent + first, sent, kPerBlock * sizeof(Stored));
      bulk_store(params.new_residual + first, total, kPerBlock * sizeof(Sum));
      if (velocity != nullptr) bulk_store(params.new_velocity + first, velocity, kPerBlock * sizeof(Sum));
      finish_bulk_stores();
      return;
    }
    for (int i = threadIdx.x; i < count; i += kThreads) {
      if (!params.list.is_wanted()) params.sent[first + i] = sent[i];
      params.new_residual[first + i] = total[i];
      if (velocity != nullptr) params.new_velocity[first + i] = velocity[i];
    }
  }
};

// A block's shared memory in accumulate.
template <typename Update>
struct AccumulateShared : CompactionShared {
  ChunkArrays<Update> arrays;
  uint64_t* arrived;  // [1]

  __host__ __device__ AccumulateShared(SharedArena& arena, const Params<Update>& params)
      : CompactionShared(arena), arrays(arena, params.velocity != nullptr), arrived(arena.take<uint64_t>(1)) {}
};

// The pass over the gradient: writes totals and velocities, logs what reaches the bracket and sends what is above it.
template <typename Update>
__global__ void __launch_bounds__(kThreads, 3) accumulate(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Stored = typename Update::Stored;
  using Bits = typename Params<Update>::Bits;
  using Chunk = PackChunk<Sum>;
  constexpr int kSize = Chunk::kSize;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const AccumulateShared<Update> shared(arena, params);
  const ChunkArrays<Update>& arrays = shared.arrays;
  const BulkLoads loads(shared.arrived);

  const CompactionBlock block(params.logging, shared);
  const int64_t size = params.problem.size, of_item = int64_t{block.chunk} * Chunk::kPerBlock;
  const int64_t first = block.batch * size + of_item;
  const int count = static_cast<int>(min(size - of_item, int64_t{Chunk::kPerBlock}));
  const State<Bits>& state = params.states[block.batch];
  const Bits logged_from = state.uses_log ? state.logged_from : kTopKey<Bits>;
  const Sum scale = params.scale[block.batch];
  arrays.load(params, first, count, loads);
  uint32_t logged = 0;
#pragma unroll
  for (int pack = 0; pack < Chunk::kPacks; ++pack) {
    const int at = Chunk::offset(pack * kSize);
    auto& update = pack_at<kSize>(arrays.sent + at);
    auto total = pack_at<kSize>(arrays.total + at);
    FloatPack<Sum, kSize> velocity = {};
    if (arrays.velocity != nullptr) velocity = pack_at<kSize>(arrays.velocity + at);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      Sum& sum = total.at[k];
      sum = params.total(update.at[k], sum, velocity.at[k], scale, &velocity.at[k]);
      if (at + k < count && key_of(bits_of(sum)) >= logged_from) logged |= 1u << (pack * kSize + k);
    }
    update = FloatPack<Stored, kSize>{};
    pack_at<kSize>(arrays.total + at) = total;
    if (arrays.velocity != nullptr) pack_at<kSize>(arrays.velocity + at) = velocity;
  }
  if (state.uses_log) {
    const PickedRanks<Chunk> ranks(logged, shared.warp_totals);
    block.announce(ranks.total);
    const int64_t before = block.place(ranks.total), entries = block.batch * params.log.room;
    const Bits sent_from = state.sent_from;
    const uint32_t fitting = block.fitting(before, ranks.total);
    ranks.for_each(logged, [&](uint32_t rank, int bit) {
      if (rank >= fitting) return;
      const int at = Chunk::offset(bit);
      const int64_t entry = entries + before + rank;
      const Sum total = arrays.total[at];
      params.log.index[entry] = static_cast<uint32_t>(of_item + at);
      params.log.total[entry] = total;
      if (arrays.velocity != nullptr) params.log.velocity[entry] = arrays.velocity[at];
      if (key_of(bits_of(total)) < sent_from) return;
      arrays.sent[at] = Update::round(part_of(total, Update{}));
      arrays.total[at] = params.rest(total);
      if (arrays.velocity != nullptr) arrays.velocity[at] = 0;
    });
  }
  arrays.store(params, first, count);
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

// Takes back what was sent with a log that does not hold the threshold.
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

// A block's shared memory in finish: with a list, for what a chunk lists.
template <typename Update>
struct FinishShared : CompactionShared {
  static constexpr int kPerBlock = PackChunk<typename Update::Sum>::kPerBlock;

  int32_t* indices;                 // [kPerBlock]
  typename Update::Stored* values;  // [kPerBlock]

  __host__ __device__ FinishShared(SharedArena& arena, const Params<Update>& params)
      : CompactionShared(arena),
        indices(arena.take<int32_t>(params.list.is_wanted() ? kPerBlock : 0)),
        values(arena.take<typename Update::Stored>(params.list.is_wanted() ? kPerBlock : 0)) {}
};

// Sends what reaches the threshold, takes back what was sent but does not reach it, and lists what is sent if a list is
// wanted. If too many elements equal the threshold, those of lowest index are sent.
template <typename Update>
__global__ void __launch_bounds__(kThreads, 2) finish(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  using Bits = typename Params<Update>::Bits;
  using Chunk = PackChunk<Sum>;
  constexpr int kSize = Chunk::kSize;
  ZEN_DYNAMIC_SHARED(memory);
  SharedArena arena(memory);
  const FinishShared<Update> shared(arena, params);
  const bool lists = params.list.is_wanted();
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
      chosen |= static_cast<uint32_t>(exists && (key >= low || key >= kInfinity<Sum>)) << bit;
      equal |= static_cast<uint32_t>(exists && key == low && key < kInfinity<Sum>) << bit;
      gone |= static_cast<uint32_t>(exists && key >= sent_from) << bit;
      listed |= static_cast<uint32_t>(lists && is_nonzero(bits_of(part_of(total, Update{})))) << bit;
    }
    if (search.reach_low > search.most && low > 0) {
      const PickedRanks<Chunk> ranks(equal, shared.warp_totals);
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
      const PickedRanks<Chunk> ranks(listed, shared.warp_totals);
      const CompactionBlock block(params.listing, shared, item, chunk, chunks);
      block.announce(ranks.total);
      ranks.for_each(listed, [&](uint32_t rank, int bit) {
        const int64_t at = Chunk::element(chunk, bit);
        shared.indices[rank] = static_cast<int32_t>(index_of(at));
        shared.values[rank] = Update::round(part_of(from[at], Update{}));
      });
      const int64_t before = block.place(ranks.total), slot = item * params.list.room + before;
      const uint32_t fitting = block.fitting(before, ranks.total);
      for (uint32_t s = threadIdx.x; s < fitting; s += kThreads) {
        params.list.indices[slot + s] = shared.indices[s];
        params.list.values[slot + s] = shared.values[s];
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

}  // namespace zen::cuda
