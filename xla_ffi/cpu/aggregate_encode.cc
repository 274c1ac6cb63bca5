#include "xla_ffi/cpu/aggregate_encode.h"

#include <cstring>

#include "cuda/common/bits.h"
#include "cuda/common/keys.h"
#include "xla_ffi/cpu/bitmap_message.h"
#include "xla_ffi/cpu/block_summer.h"
#include "xla_ffi/cpu/subnormals.h"

namespace zen {

template <typename T>
void aggregate_encode(const AggregateEncodeProblem& p, const int32_t* positions, const T* values,
                      const int32_t* counts, int64_t divisor, uint32_t* words, T* units, int32_t* count,
                      const Context& context) {
  using Bits = BitsOf<T>;
  const Inbox<T> inbox = {positions, values, counts};
  const EncodeProblem message_of = {p.batch, p.size, p.width, bitmap_words(p.size), p.room};
  const auto encode = [&](int64_t b, Range range, uint32_t* words, RangeMessage<Bits>& message) {
    if (range.begin == range.end) return;
    const KeepSubnormals keep;
    BlockSummer<T> summer(p, inbox.item(p, b), divisor, kChunkGrain);
    summer.sum(range, [&](int64_t unit, int64_t in_block, T* block) {
      const Range summed = {unit, unit + in_block};
      encode_range(message_of, reinterpret_cast<const Bits*>(block), summed, words, context.isa, message);
      std::memset(static_cast<void*>(block), 0, in_block * p.width * sizeof(T));
    });
  };
  write_bitmap_messages(message_of, words, reinterpret_cast<Bits*>(units), count, context, encode);
}

#define ZEN_INSTANTIATE(T)                                                                                             \
  template void aggregate_encode(const AggregateEncodeProblem&, const int32_t*, const T*, const int32_t*, int64_t,     \
                                 uint32_t*, T*, int32_t*, const Context&)

ZEN_INSTANTIATE(float);
ZEN_INSTANTIATE(double);
ZEN_INSTANTIATE(Float16);
ZEN_INSTANTIATE(BFloat16);

}  // namespace zen
