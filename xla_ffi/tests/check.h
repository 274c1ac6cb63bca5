// A check that prints where it failed and what was being tested, and makes the program fail at its end.
#pragma once

#include <cstdio>
#include <string>

namespace zen {

struct Checks {
  inline static int failures = 0;
  inline static std::string testing;
};

inline int test_result() {
  if (Checks::failures == 0) std::printf("passed\n");
  return Checks::failures == 0 ? 0 : 1;
}

}  // namespace zen

#define ZEN_CHECK(condition)                                                                                       \
  do {                                                                                                             \
    if (!(condition) && ++zen::Checks::failures <= 20) {                                                           \
      std::printf("%s:%d: %s is false, testing %s\n", __FILE__, __LINE__, #condition, zen::Checks::testing.c_str()); \
    }                                                                                                              \
  } while (false)
