// What the kernels need from an instruction set, a cache-sized chunk at a time, and the choice of one at run time.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "cuda/common/float16.h"

namespace zen {

constexpr int64_t kCacheLine = 64;

// Units that one call of scan() may cover, and the room that lists need beyond their entries: whole vectors are stored.
constexpr int64_t kChunkUnits = 4096;
constexpr int64_t kListSlack = 64;
// The largest entry of a list.
constexpr int64_t kMostListed = 65535;
// How far ahead of its reads scan() prefetches.
constexpr int64_t kScanAheadBytes = 6144;

// Where the units of a list lie: unit `list[i]` of a chunk that starts at offset `first` of tile `tile`.
struct ChunkOrigin {
  uint32_t tile;
  uint32_t first;
};

// How a gradient enters the totals: velocity = fma(momentum, velocity, scale * gradient).
template <typename T>
struct Momentum {
  T momentum;
  T scale;
};

// How many keys reach the higher bound, and how many only the lower one.
struct Classified {
  int64_t reaching;
  int64_t between;
};

struct Isa {
  template <typename Bits>
  using Scan = int64_t (*)(const Bits* x, int64_t width, int64_t units, uint64_t* masks, uint16_t* list);

  template <typename Update, typename T = Accumulator<Update>>
  using Accumulate = void (*)(const Update* update, const T* residual, const T* velocity, Momentum<T> how,
                              int64_t count, T* total, T* new_velocity);
  template <typename Bits>
  using Classify = Classified (*)(const Bits* x, int64_t count, Bits low, Bits high, uint16_t* reaching,
                                  uint16_t* between);
  template <typename Bits>
  using Reach = void (*)(const Bits* x, int64_t count, const Bits* probes, int64_t* reach);

  const char* name;

  // Each sets bit u % 64 of masks[u / 64] for every non-zero unit u < units, lists these u, and returns how many.
  std::tuple<Scan<uint16_t>, Scan<uint32_t>, Scan<uint64_t>> scans;

  // The tile and the server of every listed unit of a chunk.
  void (*route)(const uint16_t* list, int64_t count, ChunkOrigin origin, uint32_t n, uint32_t seed, int32_t* tiles,
                uint32_t* servers);

  // Lists the positions, relative to begin, of the set bits in [begin, end) of a bitmap, and returns how many. begin is
  // a multiple of 64.
  int64_t (*list_bits)(const uint32_t* words, int64_t begin, int64_t end, uint16_t* list);

  // How many bits are set. In portable code, which has no instruction for it, counting takes as long as decoding.
  int64_t (*count_bits)(const uint32_t* words, int64_t count);

  // Where the units that `server` owns in the listed tiles lie in a block of tiles that starts at `tile`.
  void (*place)(const uint16_t* list, int64_t count, uint32_t tile, uint32_t server, uint32_t n, uint32_t seed,
                uint32_t* units);

  // Moves bytes past the caches and leaves zeros. fence() orders such stores before whatever the thread publishes next.
  void (*drain)(void* to, void* from, int64_t bytes);
  void (*fence)();

  // total = residual + update, or residual + velocity if velocity is not null. Results may alias operands.
  std::tuple<Accumulate<Float16>, Accumulate<BFloat16>, Accumulate<float>, Accumulate<double>> accumulates;

  // Each lists the elements of a chunk whose keys reach `high`, and those whose keys reach only `low`.
  std::tuple<Classify<uint32_t>, Classify<uint64_t>> classifies;

  // Each adds to reach[i] how many keys reach probes[i], for each of kProbes probes.
  std::tuple<Reach<uint32_t>, Reach<uint64_t>> reaches;

  // A positive random number of 31 bits for each of the elements first, first + 1, ...
  void (*draw)(uint32_t first, int64_t count, uint32_t step, uint32_t* keys);

  template <typename Bits>
  Scan<Bits> scan() const {
    return std::get<Scan<Bits>>(scans);
  }
  template <typename Update>
  Accumulate<Update> accumulate() const {
    return std::get<Accumulate<Update>>(accumulates);
  }
  template <typename Bits>
  Classify<Bits> classify() const {
    return std::get<Classify<Bits>>(classifies);
  }
  template <typename Bits>
  Reach<Bits> reach() const {
    return std::get<Reach<Bits>>(reaches);
  }
};

// The instruction sets that this machine can run, best first; the last is always "scalar".
std::vector<const Isa*> available_isas();

// The best one, or the one named by the environment variable ZEN_JAX_CPU_ISA if the machine has it. Read once.
const Isa& chosen_isa();

extern const Isa kScalarIsa;
#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvx512Isa;
#endif

}  // namespace zen
