// The table of a platform's FFI targets, which both bindings read. cpu_handlers.cc and cuda_handlers.cc each define it;
// a native module links one of them.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"

namespace zen {

struct Registration {
  const char* target;
  XLA_FFI_Handler* handler;
};

const std::vector<Registration>& registrations();

// A function as an XLA FFI handler; its parameter types say what each parameter is bound to, in the order of the call.
template <auto kFunction, xla::ffi::Traits... kTraits>
XLA_FFI_Error* call(XLA_FFI_CallFrame* frame) {
  static const auto* const handler = xla::ffi::Ffi::BindTo(kFunction, {kTraits...}).release();
  return handler->Call(frame);
}

}  // namespace zen
