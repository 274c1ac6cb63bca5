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

template void hash_bitmap_encode(const EncodeProblem&, const uint16_t*, uint32_t*, uint16_t*, int32_t*, const Context&);
template void hash_bitmap_encode(const EncodeProblem&, const uint32_t*, uint32_t*, uint32_t*, int32_t*, const Context&);
template void hash_bitmap_encode(const EncodeProblem&, const uint64_t*, uint32_t*, uint64_t*, int32_t*, const Context&);

}  // namespace zen
