// What the tests of the CUDA kernels on the host share: checks, random choices and guarded memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace zen::cuda {

#define CHECK(condition, ...)                                                    \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: %s fails; ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                         \
      std::fprintf(stderr, "\n");                                                \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

inline std::mt19937_64 rng(7);

inline int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
inline double uniform() { return std::uniform_real_distribution<double>(0, 1)(rng); }

inline const size_t kPage = sysconf(_SC_PAGESIZE);

// "Device" memory: apart from the padding to 16 bytes it ends at an inaccessible page, and what surrounds it is checked
// for stray writes.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size, T fill = T{}) : size_(size) {
    const size_t bytes = (size * sizeof(T) + 15) / 16 * 16;
    mapped_ = (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
    base_ =
        static_cast<unsigned char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - kPage, kPage, PROT_NONE);
    mprotect(base_, kPage, PROT_NONE);
    data_ = reinterpret_cast<T*>(base_ + mapped_ - kPage - bytes);
    std::memset(base_ + kPage, kCanary, mapped_ - 2 * kPage);
    std::fill(data_, data_ + size, fill);
  }
  ~Buffer() {
    for (unsigned char* p = base_ + kPage; p < reinterpret_cast<unsigned char*>(data_); ++p)
      CHECK(*p == kCanary, "write before a buffer");
    for (unsigned char* p = reinterpret_cast<unsigned char*>(data_ + size_); p < base_ + mapped_ - kPage; ++p) {
      CHECK(*p == kCanary, "write after a buffer");
    }
    munmap(base_, mapped_);
  }
  Buffer(const Buffer&) = delete;

  T* data() { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  int64_t size() const { return size_; }

 private:
  static constexpr unsigned char kCanary = 0x5c;
  int64_t size_;
  size_t mapped_;
  unsigned char* base_;
  T* data_;
};

}  // namespace zen::cuda
