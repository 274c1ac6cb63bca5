// What every CPU kernel runs with.
#pragma once

#include "xla_ffi/cpu/isa.h"
#include "xla_ffi/cpu/parallel.h"

namespace zen {

struct Context {
  const Isa& isa;
  const Parallel& parallel;
};

}  // namespace zen
