// The attributes of the custom calls on both platforms: a handler parameter of one of these types receives the
// attribute of that name.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace zen::attr {

#define ZEN_ATTRIBUTE(Name, T, name)             \
  inline constexpr char kNameOf##Name[] = #name; \
  using Name = xla::ffi::Attr<T, kNameOf##Name>

ZEN_ATTRIBUTE(Capacity, int64_t, capacity);
ZEN_ATTRIBUTE(Chunks, int64_t, chunks);
ZEN_ATTRIBUTE(Divisor, int64_t, divisor);
ZEN_ATTRIBUTE(Fill, int32_t, fill);
ZEN_ATTRIBUTE(K, int64_t, k);
ZEN_ATTRIBUTE(Key, uint64_t, key);
ZEN_ATTRIBUTE(Momentum, double, momentum);
ZEN_ATTRIBUTE(N, int64_t, n);
ZEN_ATTRIBUTE(R1, int64_t, r1);
ZEN_ATTRIBUTE(R2, int64_t, r2);
ZEN_ATTRIBUTE(Rank, int64_t, rank);
ZEN_ATTRIBUTE(Seed, uint32_t, seed);
ZEN_ATTRIBUTE(Size, int64_t, size);

#undef ZEN_ATTRIBUTE

}  // namespace zen::attr
