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

  template <typename Bits>
  static uint64_t reach_mask(const Bits* x, Bits probe) {
    uint64_t mask = 0;
    for (int i = 0; i < kMaskBits; ++i) mask |= static_cast<uint64_t>(key_of(x[i]) >= probe) << i;
    return mask;
  }

  static uint64_t pick_bits(uint64_t mask, uint64_t which) {
    uint64_t bits = 0;
    for (int i = 0; which != 0; ++i, which &= which - 1) bits |= (mask >> __builtin_ctzll(which) & 1) << i;
    return bits;
  }

  static int64_t list(uint64_t mask, int64_t base, uint16_t* out) { return list_by_fours(mask, base, out); }

  static void drain_line(char* to, char* from) {
    std::memcpy(to, from, kCacheLine);
    std::memset(from, 0, kCacheLine);
  }

  static void fence() {}
};

}  // namespace

const Isa kScalarIsa = IsaImpl<Scalar>::table("scalar");

}  // namespace zen
