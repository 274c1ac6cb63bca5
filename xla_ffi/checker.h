// Checks the buffers and attributes of a custom call, up to the first complaint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace zen {

namespace ffi = xla::ffi;

using Dims = std::vector<int64_t>;

inline constexpr int64_t kMaxRank = 64;
inline constexpr int64_t kMaxServers = 65535;
inline constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

inline std::string to_string(const Dims& dims) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  out << "]";
  return out.str();
}

inline int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<int64_t>());
}

inline Dims dims_of(ffi::AnyBuffer buffer) { return Dims(buffer.dimensions().begin(), buffer.dimensions().end()); }

inline bool is_float(ffi::DataType type) {
  return type == ffi::F32 || type == ffi::F64 || type == ffi::F16 || type == ffi::BF16;
}

// Keeps the first complaint about one call's buffers. All buffers share the leading dimensions of the first.
class Checker {
 public:
  explicit Checker(const char* target) : target_(target) {}

  bool ok() const { return error_.success(); }
  const ffi::Error& error() const { return error_; }
  int64_t batch() const { return product(leading_); }

  // The first buffer: its last `rank` dimensions are its own; all buffers share those before them.
  Dims first(const char* name, ffi::AnyBuffer buffer, size_t rank) {
    const Dims dims = dims_of(buffer);
    if (dims.size() < rank) {
      fail(name, "has shape " + to_string(dims) + ", expected at least " + std::to_string(rank) + " dimensions");
      return Dims(rank, 0);
    }
    leading_.assign(dims.begin(), dims.end() - rank);
    return Dims(dims.end() - rank, dims.end());
  }

  // A later buffer whose own dimensions are read from it.
  Dims trailing(const char* name, ffi::AnyBuffer buffer, size_t rank) {
    const Dims dims = dims_of(buffer);
    if (dims.size() != leading_.size() + rank || !std::equal(leading_.begin(), leading_.end(), dims.begin())) {
      fail(name, "has shape " + to_string(dims) + ", expected the leading dimensions " + to_string(leading_) + " and " +
                     std::to_string(rank) + " more");
      return Dims(rank, 0);
    }
    return Dims(dims.end() - rank, dims.end());
  }

  // A later buffer whose own dimensions are known.
  void shape(const char* name, ffi::AnyBuffer buffer, const Dims& own) {
    Dims expected = leading_;
    expected.insert(expected.end(), own.begin(), own.end());
    if (dims_of(buffer) != expected) {
      fail(name, "has shape " + to_string(dims_of(buffer)) + ", expected " + to_string(expected));
    }
  }

  void dtype(const char* name, ffi::AnyBuffer buffer, ffi::DataType expected) {
    if (buffer.element_type() == expected) return;
    std::ostringstream out;
    out << "has dtype " << buffer.element_type() << ", expected " << expected;
    fail(name, out.str());
  }

  // A later buffer whose dtype and own dimensions are known.
  void array(const char* name, ffi::AnyBuffer buffer, ffi::DataType type, const Dims& own) {
    dtype(name, buffer, type);
    shape(name, buffer, own);
  }

  void float_dtype(const char* name, ffi::AnyBuffer buffer) {
    if (is_float(buffer.element_type())) return;
    std::ostringstream out;
    out << "has dtype " << buffer.element_type() << ", expected float32, float64, float16 or bfloat16";
    fail(name, out.str());
  }

  void in_range(const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    fail(name, "is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " + std::to_string(high));
  }

  void servers(int64_t n) { in_range("n", n, 1, kMaxServers); }
  void capacity(int64_t c) { in_range("capacity", c, 1, std::numeric_limits<int64_t>::max()); }

 private:
  void fail(const char* name, const std::string& complaint) {
    if (ok()) error_ = ffi::Error::InvalidArgument(std::string(target_) + ": " + name + " " + complaint);
  }

  const char* target_;
  Dims leading_;
  ffi::Error error_;
};

}  // namespace zen
