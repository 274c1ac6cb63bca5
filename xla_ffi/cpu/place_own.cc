#include "xla_ffi/cpu/place_own.h"

#include <algorithm>

#include "cuda/common/bits.h"
#include "cuda/common/hash.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {

template <typename T>
void place_own(const DecodeProblem& p, const uint32_t* words, const int32_t* positions, const T* values,
               const int32_t* counts, int64_t divisor, uint32_t seed, T* x, const Context& context) {
  using Sum = Accumulator<T>;
  const Sum reciprocal = Sum{1} / static_cast<Sum>(divisor);
  const auto n = static_cast<uint32_t>(p.n);
  const auto entries = [&](int64_t bucket) { return std::clamp<int64_t>(counts[bucket], 0, p.capacity); };
  int64_t sent = 0;
  for (int64_t bucket = 0; bucket < p.batch * p.n; ++bucket) sent += entries(bucket);
  context.run(p.batch * p.n, 2 * sent * p.width * sizeof(T), [&](int64_t bucket) {
    const KeepSubnormals keep;
    const int64_t item = bucket / p.n;
    const auto server = static_cast<uint32_t>(bucket % p.n);
    const int64_t begin = bucket * p.capacity, end = begin + entries(bucket);
    for (int64_t entry = begin; entry < end; ++entry) {
      const auto tile = static_cast<uint32_t>(positions[entry]);
      if (tile >= p.words * kBitsPerWord) continue;  // not a position of this server: ignored
      if (words[bucket * p.words + tile / kBitsPerWord] >> (tile % kBitsPerWord) & 1) continue;
      const int64_t unit = int64_t{tile} * n + offset_in_tile(server, tile_rotation(tile, n, seed), n);
      if (unit >= p.units) continue;
      T* const to = x + (item * p.units + unit) * p.width;
      for (int64_t i = 0; i < p.width; ++i) {
        T mean;
        round_to(widen(values[entry * p.width + i]) * reciprocal, &mean);
        to[i] = without_negative_zero(mean);
      }
    }
  });
}

#define ZEN_INSTANTIATE(T)                                                                                       \
  template void place_own(const DecodeProblem&, const uint32_t*, const int32_t*, const T*, const int32_t*,       \
                          int64_t, uint32_t, T*, const Context&)

ZEN_INSTANTIATE(float);
ZEN_INSTANTIATE(double);
ZEN_INSTANTIATE(Float16);
ZEN_INSTANTIATE(BFloat16);

}  // namespace zen
