// Small helpers for memory that kernels read and write.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "xla_ffi/cpu/isa.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace zen {

// Copies one unit. Width 1 is worth its own branch: a memcpy of unknown size is a call.
template <typename T>
inline void copy_unit(T* to, const T* from, int64_t width) {
  if (width == 1) {
    *to = *from;
  } else {
    std::memcpy(to, from, width * sizeof(T));
  }
}

// For one of many streams of stores: hardware keeps up with about 16; beyond that, every new line causes a wait.
inline void prefetch_next_line(const void* here) {
  __builtin_prefetch(static_cast<const char*>(here) + kCacheLine, 1, 3);
}

// Starts a std::vector at a cache line, so that SIMD vectors of any width load whole lines of it.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{kCacheLine};

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* data, size_t) { ::operator delete(data, kAlignment); }
  bool operator==(const CacheLineAllocator&) const { return true; }
  bool operator!=(const CacheLineAllocator&) const { return false; }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

// A result of at least this size is written past the caches.
constexpr int64_t kMinStreamBytes = 1 << 20;

// Writes a block out and leaves zeros in its place.
inline void move_out(const Isa& isa, bool past_caches, void* to, void* block, int64_t bytes) {
  if (past_caches) {
    isa.drain(to, block, bytes);
  } else {
    std::memcpy(to, block, bytes);
    std::memset(block, 0, bytes);
  }
}

// Requests huge pages for a buffer that is about to be written whole: a fresh buffer costs a fault per page, more than
// the writing. Below this size the allocator reuses pages that are already mapped.
constexpr int64_t kHugePageMinBytes = 32 << 20;

inline void advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kHugePage = 2 << 20;
  if (bytes < kHugePageMinBytes) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace zen
