// XLA runs its CPU code with subnormals flushed to zero. Sums that must lose nothing need subnormals; sums that decay
// must not be slowed down by them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace zen {

// During its lifetime, this thread's arithmetic keeps subnormals, or flushes them to zero.
template <bool kKeep>
class ScopedSubnormals {
 public:
  ScopedSubnormals() : saved_(control()) { set_control(kKeep ? saved_ & ~kFlushBits : saved_ | kFlushBits); }
  ~ScopedSubnormals() { set_control(saved_); }
  ScopedSubnormals(const ScopedSubnormals&) = delete;
  ScopedSubnormals& operator=(const ScopedSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  using Control = unsigned int;
  static constexpr Control kFlushBits = 0x8040;  // flush to zero, denormals are zero
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kFlushBits = uint64_t{1} << 24;  // FPCR.FZ
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  using Control = unsigned int;
  static constexpr Control kFlushBits = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  const Control saved_;
};

using KeepSubnormals = ScopedSubnormals<true>;
using FlushSubnormals = ScopedSubnormals<false>;

}  // namespace zen
