// The operands and attributes of the custom calls that send the largest, on either platform; results follow.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace zen {

// `Context` is what a handler of the platform starts with.
template <typename Context>
auto bind_largest() {
  return xla::ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<xla::ffi::AnyBuffer>()  // update
      .template Arg<xla::ffi::AnyBuffer>()  // residual
      .template Arg<xla::ffi::AnyBuffer>()  // velocity
      .template Arg<xla::ffi::AnyBuffer>()  // scale
      .template Arg<xla::ffi::AnyBuffer>()  // bounds
      .template Attr<int64_t>("rank")
      .template Attr<double>("momentum")
      .template Attr<int64_t>("chunks");
}

}  // namespace zen
