#include "xla_ffi/cpu/isa.h"

#include <cstdlib>
#include <cstring>

namespace zen {

std::vector<const Isa*> available_isas() {
  std::vector<const Isa*> isas;
#if defined(__x86_64__)
  // A virtual machine may mask single features, so every one that a file is compiled for counts.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi2");
  if (avx512) isas.push_back(&kAvx512Isa);
  if (avx2) isas.push_back(&kAvx2Isa);
#endif
  isas.push_back(&kScalarIsa);
  return isas;
}

const Isa& chosen_isa() {
  static const Isa* const chosen = [] {
    const std::vector<const Isa*> isas = available_isas();
    if (const char* name = std::getenv("ZEN_JAX_CPU_ISA")) {
      for (const Isa* isa : isas) {
        if (std::strcmp(isa->name, name) == 0) return isa;
      }
    }
    return isas.front();
  }();
  return *chosen;
}

}  // namespace zen
