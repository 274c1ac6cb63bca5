// The table of a platform's FFI targets, which both bindings read. cpu_handlers.cc and cuda_handlers.cc each define it; a
// native module links one of them.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"

namespace zen {

struct Registration {
  const char* target;
  XLA_FFI_Handler* handler;
};

const std::vector<Registration>& registrations();

}  // namespace zen
