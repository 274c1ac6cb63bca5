// Kernels that begin a selection: they sample a gradient and bracket its threshold by the keys of two sample ranks.
#pragma once

#include <cstdint>

#include "cuda/common/hash.h"
#include "cuda/common/keys.h"
#include "cuda/feedback.cuh"
#include "cuda/threshold.cuh"

namespace zen::cuda {

template <typename Update>
__global__ void __launch_bounds__(kThreads) start(const __grid_constant__ Params<Update> params) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  const LargestBounds& bounds = params.bounds[item];
  const int64_t sampled = params.sample_chunks * kSampleChunk;
  state.ranks[0].start(sampled, bounds.below, -1);
  state.ranks[1].start(sampled, bounds.above, -1);
  state.threshold.start(params.problem.size, bounds.least, bounds.most);
  state.uses_log = 0;
  params.logging.count[item] = 0;
  if (params.list.is_wanted()) params.listing.count[item] = 0;  // no block lists anything where nothing is logged
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) take_sample(const __grid_constant__ Params<Update> params) {
  using Sum = typename Update::Sum;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t sampled = params.sample_chunks * kSampleChunk, item = id / sampled, chunk = id % sampled / kSampleChunk;
  if (item >= params.problem.batch) return;
  const int64_t stretch = params.problem.size / params.sample_chunks;
  const uint32_t places = static_cast<uint32_t>(stretch - kSampleChunk + 1);
  const int64_t begin = chunk * stretch + reduce_to_range(murmur3(static_cast<uint32_t>(chunk), 0), places);
  const int64_t i = item * params.problem.size + begin + id % kSampleChunk;
  Sum new_velocity = 0;
  const Sum velocity = params.velocity == nullptr ? Sum{0} : params.velocity[i];
  params.sample[id] =
      key_of(bits_of(params.total(params.update[i], params.residual[i], velocity, params.scale[item], &new_velocity)));
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
  const int64_t sampled = params.sample_chunks * kSampleChunk;
  const bool is_last = count_reach(&search, shared, params.sample + item * sampled, sampled,
                                   blockIdx.x % params.blocks, params.blocks);
  if (is_last && threadIdx.x == 0) search.narrow(shared.probes, shared.counts);
}

template <typename Update>
__global__ void __launch_bounds__(kThreads) set_bracket(const __grid_constant__ Params<Update> params) {
  constexpr auto kMost = kInfinity<typename Update::Sum>;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= params.problem.batch) return;
  auto& state = params.states[item];
  const auto below = state.ranks[0].low, above = state.ranks[1].low;
  state.threshold.start_from(below, above);
  const auto highest = state.threshold.probe(kGaps * kGaps * kProbes - 1);
  state.logged_from = below < kMost ? below : kMost;
  state.sent_from = highest < kMost ? highest : kMost;
  const int64_t sampled = params.sample_chunks * kSampleChunk;
  // Whether the log has room for the keys above that of rank `below`, as many as the sample predicts.
  const bool fits = params.bounds[item].below * params.problem.size <= params.log.room * sampled;
  state.uses_log = !state.threshold.done && below > 0 && fits;
}

}  // namespace zen::cuda
