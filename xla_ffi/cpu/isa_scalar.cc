// The portable instruction set.
#include "xla_ffi/cpu/isa_impl.h"

namespace zen {
namespace {

struct Scalar {
  template <typename Bits>
  static uint64_t nonzero_mask(const Bits* x) {
    uint64_t mask = 0;
    for (int i = 0; i < kMaskBits; ++i) mask |= static_cast<uint64_t>(is_nonzero(x[i])) << i;
    return mask;
  }

  static uint64_t every_nth_bit(uint64_t mask, int64_t n) {
    uint64_t bits = 0;
    for (int64_t i = 0; i * n < kMaskBits; ++i) bits |= (mask >> (i * n) & 1) << i;
    return bits;
  }

  static int64_t list(uint64_t mask, int64_t base, uint16_t* out) { return list_by_fours(mask, base, out); }

  static void stream_line(char* to, const char* from) { std::memcpy(to, from, kCacheLine); }

  static void fence() {}
};

}  // namespace

const Isa kScalarIsa = IsaImpl<Scalar>::table("scalar");

}  // namespace zen
