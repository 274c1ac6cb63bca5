// The one table of FFI targets. cpu_handlers.cc and cuda_handlers.cc each define these handlers for their platform; a
// native module links one of them, and both bindings read the table.
#pragma once

#include <vector>

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(ZenPartition);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ZenAggregate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ZenHashBitmapEncode);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ZenHashBitmapDecode);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ZenHierarchicalHash);

namespace zen {

struct Registration {
  const char* target;
  XLA_FFI_Handler* handler;
};

const std::vector<Registration>& registrations();

}  // namespace zen
