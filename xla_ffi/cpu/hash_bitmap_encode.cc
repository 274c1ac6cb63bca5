#include "xla_ffi/cpu/hash_bitmap_encode.h"

#include "xla_ffi/cpu/bitmap_message.h"

namespace zen {

template <typename Bits>
void hash_bitmap_encode(const EncodeProblem& p, const Bits* shard, uint32_t* words, Bits* values, int32_t* count,
                        const Context& context) {
  const auto encode = [&](int64_t b, Range range, uint32_t* words, RangeMessage<Bits>& message) {
    encode_range(p, shard + (b * p.size + range.begin) * p.width, range, words, context.isa, message);
  };
  write_bitmap_messages(p, words, values, count, context, encode);
}

#define ZEN_INSTANTIATE(Bits)                                                                                          \
  template void hash_bitmap_encode(const EncodeProblem&, const Bits*, uint32_t*, Bits*, int32_t*, const Context&)

ZEN_INSTANTIATE(uint16_t);
ZEN_INSTANTIATE(uint32_t);
ZEN_INSTANTIATE(uint64_t);

}  // namespace zen
