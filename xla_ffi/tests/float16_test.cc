// The 16-bit floats: every value survives the round trip to float, and rounding is to nearest, ties to even.
#include "cuda/common/float16.h"

#include <cmath>
#include <random>
#include <string>

#include "xla_ffi/tests/check.h"

namespace zen {
namespace {

template <typename T>
T from_bits(uint32_t bits) {
  return T{static_cast<uint16_t>(bits)};
}

template <typename T>
uint16_t rounded(float value) {
  T out;
  round_to(value, &out);
  return out.bits;
}

template <typename T>
void test_round_trip() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = widen(from_bits<T>(bits));
    Checks::testing = "bits " + std::to_string(bits);
    if (std::isnan(wide)) {
      ZEN_CHECK(std::isnan(widen(from_bits<T>(rounded<T>(wide)))));
    } else {
      ZEN_CHECK(rounded<T>(wide) == bits);
    }
  }
}

// Between two neighbours: to the nearer one, and from the middle to the even one.
template <typename T>
void test_rounding(uint32_t infinity) {
  for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const float low = widen(from_bits<T>(bits)), high = widen(from_bits<T>(bits + 1));
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    Checks::testing = "above bits " + std::to_string(bits);
    ZEN_CHECK(rounded<T>(middle) == (bits % 2 == 0 ? bits : bits + 1));
    ZEN_CHECK(rounded<T>(std::nextafter(middle, low)) == bits);
    ZEN_CHECK(rounded<T>(std::nextafter(middle, high)) == bits + 1);
    ZEN_CHECK(rounded<T>(-middle) == (0x8000 | rounded<T>(middle)));
  }
  Checks::testing = "the largest floats";
  ZEN_CHECK(rounded<T>(INFINITY) == infinity);
  ZEN_CHECK(rounded<T>(3.4028235e38f) == infinity);
}

void test_known_values() {
  Checks::testing = "known values";
  ZEN_CHECK(widen(Float16{0x3c00}) == 1.0f && widen(Float16{0x0001}) == 0x1p-24f && widen(Float16{0x7bff}) == 65504.0f);
  ZEN_CHECK(widen(BFloat16{0x3f80}) == 1.0f && widen(BFloat16{0xc000}) == -2.0f);
  ZEN_CHECK(rounded<Float16>(65519.0f) == 0x7bff && rounded<Float16>(65520.0f) == 0x7c00);
}

}  // namespace
}  // namespace zen

int main() {
  zen::test_round_trip<zen::Float16>();
  zen::test_round_trip<zen::BFloat16>();
  zen::test_rounding<zen::Float16>(0x7c00);
  zen::test_rounding<zen::BFloat16>(0x7f80);
  zen::test_known_values();
  return zen::test_result();
}
