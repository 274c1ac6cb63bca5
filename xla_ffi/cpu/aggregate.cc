#include "xla_ffi/cpu/aggregate.h"

#include "xla_ffi/cpu/block_summer.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/split.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {

template <typename T>
void aggregate(const AggregateProblem& p, const int32_t* positions, const T* values, const int32_t* counts,
               int64_t divisor, T* shard, const Context& context) {
  const int64_t unit_bytes = p.width * static_cast<int64_t>(sizeof(T)), item_bytes = p.size * unit_bytes;
  if (item_bytes == 0) return;
  advise_huge_pages(shard, p.batch * item_bytes);
  const Inbox<T> inbox = {positions, values, counts};
  const bool past_caches = item_bytes >= kMinStreamBytes;
  const int64_t ranges = ranges_per_item(p.batch, item_bytes, 4, context);
  context.parallel.run(p.batch * ranges, [&](int64_t task) {
    const KeepSubnormals keep;
    const int64_t b = task / ranges;
    T* const out = shard + b * p.size * p.width;
    BlockSummer<T> summer(p, inbox.item(p, b), divisor, 1);
    summer.sum(range_of(task % ranges, ranges, p.size, 1), [&](int64_t unit, int64_t units, T* block) {
      move_out(context.isa, past_caches, out + unit * p.width, block, units * unit_bytes);
    });
    context.isa.fence();
  });
}

#define ZEN_INSTANTIATE(T)                                                                                             \
  template void aggregate(const AggregateProblem&, const int32_t*, const T*, const int32_t*, int64_t, T*,              \
                          const Context&)

ZEN_INSTANTIATE(float);
ZEN_INSTANTIATE(double);
ZEN_INSTANTIATE(Float16);
ZEN_INSTANTIATE(BFloat16);

}  // namespace zen
