// What the launch functions need to know about elements. Kernels that only move bits use their size alone.
#pragma once

#include <cstdint>

namespace zen::cuda {

enum class Element { kFloat32, kFloat64, kFloat16, kBfloat16 };

constexpr int element_bytes(Element element) {
  switch (element) {
    case Element::kFloat64:
      return 8;
    case Element::kFloat32:
      return 4;
    case Element::kFloat16:
    case Element::kBfloat16:
      return 2;
  }
  return 0;
}

// Returns visit(b) with b of the unsigned type that has the element's size.
template <typename Visit>
auto visit_bits(Element element, Visit visit) {
  switch (element_bytes(element)) {
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    default:
      return visit(uint64_t{});
  }
}

}  // namespace zen::cuda
