// Sorts the units that a block has listed by the server that owns them, keeping their order.
#pragma once

#include <cstdint>

#include "cuda/block_scan.cuh"
#include "cuda/launch.cuh"

namespace zen::cuda {

// A block's shared memory, for `n` servers. Lists of units hold 16-bit offsets; `order` lists ranks in `offsets`, by
// server.
struct SortShared {
  // A row of the histogram is padded to a whole number of words: threads handle two servers, packed in one word, at a
  // time. No field overflows, as a chunk has at most 2^14 units.
  static constexpr int kMaxUnits = 1 << 14;

  uint32_t* warp_totals;  // [kWarps]
  uint32_t* starts;       // [n + 1], where each server's run starts in `order`
  uint16_t* histogram;    // [kWarps, n rounded up to even]
  uint16_t* offsets;      // [units]
  uint16_t* order;        // [units]

  __host__ __device__ SortShared(SharedArena& arena, uint32_t n, uint32_t units) {
    warp_totals = arena.take<uint32_t>(kWarps);
    starts = arena.take<uint32_t>(n + 1);
    histogram = arena.take<uint16_t>(kWarps * histogram_stride(n));
    offsets = arena.take<uint16_t>(units);
    order = arena.take<uint16_t>(units);
  }

  __host__ __device__ static uint32_t histogram_stride(uint32_t n) { return (n + 1) / 2 * 2; }
};

// Units are listed in shared.offsets; units.server(j) is the j-th unit's server, counted from this launch's first.
class ServerSort {
 public:
  // A barrier must follow.
  __device__ ServerSort(const SortShared& shared, uint32_t n) : shared_(shared), n_(n) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(shared.histogram);
    for (uint32_t i = threadIdx.x; i < kWarps * words_per_row(); i += kThreads) words[i] = 0;
  }

  // Sorts into shared.order. Each warp brings units begin .. end - 1, which follow those of the warp before. Calls
  // publish(server, count) as soon as a server's count is known. A barrier must follow.
  template <typename Units, typename Publish>
  __device__ void sort(uint32_t begin, uint32_t end, const Units& units, Publish publish) const {
    count_servers(begin, end, units);
    __syncthreads();
    publish_counts_and_place_runs(publish);
    __syncthreads();
    rank(begin, end, units);
  }

 private:
  __device__ uint32_t words_per_row() const { return SortShared::histogram_stride(n_) / 2; }

  // Each warp counts its own part of the list.
  template <typename Units>
  __device__ void count_servers(uint32_t begin, uint32_t end, const Units& units) const {
    uint32_t* const words = reinterpret_cast<uint32_t*>(shared_.histogram) + warp_id() * words_per_row();
    for (uint32_t j = begin + lane_id(); j < end; j += kWarpSize) {
      const uint32_t server = units.server(j);
      atomicAdd(words + server / 2, server % 2 ? 1u << 16 : 1u);
    }
  }

  // Publishes the chunk's counts, then turns the histogram into the places in `order` at which each warp's run of each
  // server starts.
  template <typename Publish>
  __device__ void publish_counts_and_place_runs(Publish publish) const {
    const uint32_t pair = threadIdx.x;
    uint32_t* const column = reinterpret_cast<uint32_t*>(shared_.histogram) + pair;
    const uint32_t row = words_per_row();
    uint32_t packed = 0;
    if (pair < row) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) packed += column[w * row];
    }
    const uint32_t low = packed & 0xffffu, high = packed >> 16;
    if (2 * pair < n_) publish(2 * pair, low);
    if (2 * pair + 1 < n_) publish(2 * pair + 1, high);

    const bool one_warp = row <= kWarpSize;
    if (one_warp && warp_id() > 0) return;
    const uint32_t first = one_warp ? warp_inclusive_sum(low + high) - low - high
                                    : block_exclusive_sum(low + high, shared_.warp_totals).before;
    if (pair >= row) return;
    constexpr int kAtOnce = 8;
    uint32_t start = first | (first + low) << 16;
    for (int w = 0; w < kWarps; w += kAtOnce) {
      uint32_t counts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) counts[i] = column[(w + i) * row];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        column[(w + i) * row] = start;
        start += counts[i];
      }
    }
    shared_.starts[2 * pair] = first;
    if (2 * pair + 1 < n_) shared_.starts[2 * pair + 1] = first + low;
    if (pair == row - 1) shared_.starts[n_] = first + low + high;
  }

  // A stable counting sort within the warp's part: equal servers among 32 neighbours keep their order, as do rounds.
  template <typename Units>
  __device__ void rank(uint32_t begin, uint32_t end, const Units& units) const {
    uint16_t* const next = shared_.histogram + warp_id() * SortShared::histogram_stride(n_);
    for (uint32_t base = begin; base < end; base += kWarpSize) {
      const uint32_t j = base + lane_id();
      const bool active = j < end;
      const uint32_t server = active ? units.server(j) : n_;
      const uint32_t peers = __match_any_sync(kFullWarp, server);
      const uint32_t before = __popc(peers & ((1u << lane_id()) - 1u));
      if (active) shared_.order[next[server] + before] = static_cast<uint16_t>(j);
      __syncwarp();
      if (active && before == 0) next[server] += static_cast<uint16_t>(__popc(peers));
      __syncwarp();
    }
  }

  const SortShared& shared_;
  const uint32_t n_;
};

}  // namespace zen::cuda
