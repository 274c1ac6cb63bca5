#include "cuda/send_largest.h"

#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/feedback_passes.cuh"
#include "cuda/feedback_sample.cuh"
#include "cuda/picks.cuh"

namespace zen::cuda {
namespace {

// Keys per thread in a search, and the share of elements that the log has room for.
constexpr int64_t kKeysPerThread = 16;
constexpr int64_t kLoggedShare = 16;

// The parts of a call's scratch, one after another for the whole batch: each starts at a multiple of 16 bytes.
template <typename Update>
class Scratch {
  using Sum = typename Update::Sum;
  using Bits = typename Params<Update>::Bits;

 public:
  // For measuring, `base` is any multiple of 16 except null, like SharedArena's.
  Scratch(void* base, int64_t batch, int64_t size, int64_t sample_chunks, bool has_velocity, Params<Update>* params)
      : base_(static_cast<unsigned char*>(base)) {
    const int64_t room = sample_chunks > 0 ? size / kLoggedShare / 4 * 4 : 0;
    const int64_t chunks = ceil_div(size, PackChunk<Sum>::kPerBlock);
    // The ties need no ticket: their chunks are numbered with the list's.
    for (CompactionParams* compaction : {&params->logging, &params->listing}) {
      compaction->ticket = take<uint32_t>(kTicketBytes / sizeof(uint32_t));
    }
    for (CompactionParams* compaction : {&params->logging, &params->ties, &params->listing}) {
      compaction->chunks = chunks;
      compaction->states = take<uint32_t>(batch * ChunkGroups::words(chunks, 1));
    }
    zeroed_bytes_ = used_;
    params->logging.count = take<int32_t>(batch);
    params->ties.count = take<int32_t>(batch);
    params->states = take<State<Bits>>(batch);
    params->sample = take<Bits>(batch * sample_chunks * kSampleChunk);
    params->log = {room, take<uint32_t>(batch * room), take<Sum>(batch * room), nullptr};
    if (has_velocity) params->log.velocity = take<Sum>(batch * room);
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
  using Bits = typename Params<Update>::Bits;
  const FeedbackProblem& problem = params.problem;
  const auto blocks_for = [&](int64_t keys, int64_t searches) {
    return static_cast<uint32_t>(std::clamp<int64_t>(ceil_div(keys, kThreads * kKeysPerThread), 1,
                                                     std::max<int64_t>(1, kResidentBlocks / searches)));
  };
  const size_t search_bytes = shared_bytes<SearchShared<Bits>>();
  const int64_t item_blocks = ceil_div(problem.batch, kThreads), sampled = params.sample_chunks * kSampleChunk;
  const bool has_sample = sampled > 0;
  ZEN_RETURN_IF_ERROR(launch(start<Update>, item_blocks, 0, stream, params));
  if (has_sample) {
    ZEN_RETURN_IF_ERROR(launch(take_sample<Update>, ceil_div(problem.batch * sampled, kThreads), 0, stream, params));
    params.blocks = blocks_for(sampled, 2 * problem.batch);
    for (int pass = 0; pass < kMostPasses<Bits>; ++pass) {
      ZEN_RETURN_IF_ERROR(
          launch(search_sample<Update>, 2 * problem.batch * params.blocks, search_bytes, stream, params));
    }
    ZEN_RETURN_IF_ERROR(launch(set_bracket<Update>, item_blocks, 0, stream, params));
  }
  const int64_t chunks = problem.batch * params.logging.chunks;
  const size_t accumulate_bytes = shared_bytes<AccumulateShared<Update>>(params);
  ZEN_RETURN_IF_ERROR(launch(accumulate<Update>, chunks, accumulate_bytes, stream, params));
  params.blocks = blocks_for(problem.size, problem.batch);
  const int64_t blocks = problem.batch * params.blocks;
  // One more after a sample: the first may give up the log and leave the search where it was.
  const int passes = kMostPasses<Bits> + has_sample;
  for (int pass = 0; pass < passes; ++pass) {
    ZEN_RETURN_IF_ERROR(launch(search_threshold<Update>, blocks, search_bytes, stream, params));
    if (pass == 0 && has_sample) ZEN_RETURN_IF_ERROR(launch(take_back<Update>, blocks, 0, stream, params));
  }
  const size_t finish_bytes = shared_bytes<FinishShared<Update>>(params);
  return launch(finish<Update>, std::min(chunks, kResidentBlocks), finish_bytes, stream, params);
}

}  // namespace

int64_t send_largest_scratch_bytes(int64_t size, int64_t element_bytes, int64_t sample_chunks, bool has_velocity) {
  const auto bytes = [&](auto update) {
    using Update = decltype(update);
    Params<Update> params = {};
    return Scratch<Update>(reinterpret_cast<void*>(16), 1, size, sample_chunks, has_velocity, &params).bytes();
  };
  return element_bytes == 8 ? bytes(Float64{}) : bytes(Float32{});
}

cudaError_t send_largest(const FeedbackProblem& problem, Element element, const SendLargestArrays& d_arrays,
                         const LargestBounds* d_bounds, const void* d_scale, double momentum, int64_t sample_chunks,
                         void* d_scratch, cudaStream_t stream) {
  if (problem.batch == 0) return cudaSuccess;
  if (problem.size == 0) {
    if (!d_arrays.list.is_wanted()) return cudaSuccess;
    return cudaMemsetAsync(d_arrays.list.count, 0, problem.batch * sizeof(int32_t), stream);
  }
  return visit_dtype(element, [&](auto update) {
    using Update = decltype(update);
    using Sum = typename Update::Sum;
    using Stored = typename Update::Stored;
    Params<Update> params = {};
    params.problem = problem;
    params.sample_chunks = sample_chunks;
    params.momentum = static_cast<Sum>(momentum);
    params.update = static_cast<const Stored*>(d_arrays.update);
    params.residual = static_cast<const Sum*>(d_arrays.residual);
    params.velocity = static_cast<const Sum*>(d_arrays.velocity);
    params.sent = static_cast<Stored*>(d_arrays.sent);
    params.list = {d_arrays.list.indices, static_cast<Stored*>(d_arrays.list.values), d_arrays.list.count,
                   d_arrays.list.room};
    params.new_residual = static_cast<Sum*>(d_arrays.new_residual);
    params.new_velocity = static_cast<Sum*>(d_arrays.new_velocity);
    params.bounds = d_bounds;
    params.scale = static_cast<const Sum*>(d_scale);
    const bool has_velocity = params.velocity != nullptr;
    const Scratch<Update> scratch(d_scratch, problem.batch, problem.size, sample_chunks, has_velocity, &params);
    params.logging.capacity = params.log.room;
    params.listing.capacity = params.list.room;
    params.listing.count = params.list.count;
    ZEN_RETURN_IF_ERROR(cudaMemsetAsync(d_scratch, 0, scratch.zeroed_bytes(), stream));
    return run(params, stream);
  });
}

}  // namespace zen::cuda
