#include "xla_ffi/cpu/aggregate.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {
namespace {

constexpr int64_t kBlockBytes = 16 << 10;

template <typename T>
struct Item {
  const int32_t* positions;
  const T* values;
  const int32_t* counts;
  T* shard;
};

// Sums blocks of positions that fit the first-level cache, one worker after another.
template <typename T>
class BlockSummer {
 public:
  BlockSummer(const AggregateProblem& p, const Item<T>& item, int64_t divisor, const Isa& isa)
      : p_(p),
        item_(item),
        reciprocal_(Accumulator<T>{1} / static_cast<Accumulator<T>>(divisor)),
        isa_(isa),
        block_units_(std::max<int64_t>(1, kBlockBytes / (p.width * sizeof(Accumulator<T>)))),
        streams_(p.size * p.width * static_cast<int64_t>(sizeof(T)) >= kMinStreamBytes),
        sums_(block_units_ * p.width),
        next_(p.n) {}

  void sum(Range range) {
    for (int64_t worker = 0; worker < p_.n; ++worker) {
      const int32_t* const positions = item_.positions + worker * p_.capacity;
      next_[worker] = std::lower_bound(positions, positions + entries(worker), range.begin) - positions;
    }
    for (int64_t unit = range.begin; unit < range.end; unit += block_units_) {
      const int64_t units = std::min(block_units_, range.end - unit);
      for (int64_t worker = 0; worker < p_.n; ++worker) {
        next_[worker] = p_.width == 1 ? add_worker<true>(worker, unit, units) : add_worker<false>(worker, unit, units);
      }
      write(unit, units);
    }
    isa_.fence();
  }

 private:
  int64_t entries(int64_t worker) const {
    return std::clamp<int64_t>(item_.counts[worker], 0, p_.capacity);
  }

  // Adds the worker's entries in [begin, begin + units) and returns the first entry behind them.
  template <bool kOneElement>
  int64_t add_worker(int64_t worker, int64_t begin, int64_t units) {
    const int64_t width = kOneElement ? 1 : p_.width;
    const int32_t* const positions = item_.positions + worker * p_.capacity;
    const T* const values = item_.values + worker * p_.capacity * width;
    const int64_t last = entries(worker), end = begin + units;
    int64_t entry = next_[worker];
    for (; entry < last && positions[entry] < end; ++entry) {
      const uint64_t local = static_cast<uint64_t>(positions[entry] - begin);
      if (local >= static_cast<uint64_t>(units)) continue;  // out of order: ignored, whatever the caller did
      Accumulator<T>* const sum = sums_.data() + local * width;
      for (int64_t i = 0; i < width; ++i) sum[i] += widen(values[entry * width + i]);
    }
    return entry;
  }

  void write(int64_t unit, int64_t units) {
    const int64_t elements = units * p_.width;
    if (reciprocal_ != 1) {
      for (int64_t i = 0; i < elements; ++i) sums_[i] *= reciprocal_;
    }
    T* const out = item_.shard + unit * p_.width;
    if constexpr (std::is_same_v<T, Accumulator<T>>) {
      move_out(isa_, streams_, out, sums_.data(), elements * sizeof(T));
    } else {
      for (int64_t i = 0; i < elements; ++i) round_to(sums_[i], &out[i]);
      std::fill_n(sums_.data(), elements, Accumulator<T>{0});
    }
  }

  const AggregateProblem& p_;
  const Item<T> item_;
  const Accumulator<T> reciprocal_;  // as XLA compiles the division of pmean
  const Isa& isa_;
  const int64_t block_units_;
  const bool streams_;
  AlignedVector<Accumulator<T>> sums_;
  std::vector<int64_t> next_;
};

}  // namespace

template <typename T>
void aggregate(const AggregateProblem& p, const int32_t* positions, const T* values, const int32_t* counts,
               int64_t divisor, T* shard, const Context& context) {
  const int64_t item_bytes = p.size * p.width * static_cast<int64_t>(sizeof(T));
  if (item_bytes == 0) return;
  advise_huge_pages(shard, p.batch * item_bytes);
  const int64_t ranges = ranges_per_item(p.batch, item_bytes, 4, context);
  context.parallel.run(p.batch * ranges, [&](int64_t task) {
    const KeepSubnormals keep;
    const int64_t b = task / ranges, bucket = b * p.n * p.capacity;
    const Item<T> item = {positions + bucket, values + bucket * p.width, counts + b * p.n,
                          shard + b * p.size * p.width};
    BlockSummer<T>(p, item, divisor, context.isa).sum(range_of(task % ranges, ranges, p.size, 1));
  });
}

template void aggregate(const AggregateProblem&, const int32_t*, const float*, const int32_t*, int64_t, float*,
                        const Context&);
template void aggregate(const AggregateProblem&, const int32_t*, const double*, const int32_t*, int64_t, double*,
                        const Context&);
template void aggregate(const AggregateProblem&, const int32_t*, const Float16*, const int32_t*, int64_t, Float16*,
                        const Context&);
template void aggregate(const AggregateProblem&, const int32_t*, const BFloat16*, const int32_t*, int64_t, BFloat16*,
                        const Context&);

}  // namespace zen
