// Rows taken and placed part by part arrive whole, and what is not in a part stays unchanged.
#include "xla_ffi/cpu/parts.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "xla_ffi/tests/check.h"

namespace zen {
namespace {

using Buffer = std::vector<char>;

template <typename Pointer>
std::vector<Pointer> pointers(std::vector<Buffer>& buffers) {
  std::vector<Pointer> found;
  for (Buffer& buffer : buffers) found.push_back(buffer.data());
  return found;
}

void test(const PartProblem& p) {
  Checks::testing = "parts of " + std::to_string(p.part) + " of " + std::to_string(p.size) + " elements of " +
                    std::to_string(p.item_bytes) + " bytes";
  const int64_t row_bytes = p.size * p.item_bytes, part_bytes = p.part * p.item_bytes;
  std::vector<Buffer> rows(p.n, Buffer(p.batch * row_bytes)), parts(p.n, Buffer(p.batch * part_bytes));
  Buffer received(p.batch * p.n * row_bytes, -1), expected(received);
  for (int64_t row = 0; row < p.n; ++row) std::iota(rows[row].begin(), rows[row].end(), static_cast<char>(row * 50));

  std::vector<int32_t> start(p.batch, 0), next(p.batch);
  const std::unique_ptr<bool[]> more(new bool[p.batch]);
  for (int64_t begin = 0; begin < p.size; begin += p.part) {
    take_part(p, start.data(), pointers<const char*>(rows), pointers<char*>(parts));
    const int64_t first = std::min(begin, p.size - p.part);
    for (int64_t item = 0; item < p.batch; ++item) {
      for (int64_t row = 0; row < p.n; ++row) {
        const char* const from = rows[row].data() + item * row_bytes + first * p.item_bytes;
        ZEN_CHECK(std::equal(from, from + part_bytes, parts[row].data() + item * part_bytes));
        std::copy_n(from, part_bytes, expected.data() + (item * p.n + row) * row_bytes + first * p.item_bytes);
      }
    }
    place_part(p, start.data(), pointers<const char*>(parts), received.data(), next.data(), more.get());
    ZEN_CHECK(received == expected);
    for (int64_t item = 0; item < p.batch; ++item) {
      ZEN_CHECK(next[item] == begin + p.part);
      ZEN_CHECK(more[item] == (begin + p.part < p.size));
    }
    start = next;
  }
}

}  // namespace
}  // namespace zen

int main() {
  for (int64_t item_bytes : {1, 2, 4, 8}) {
    for (int64_t part : {1, 3, 8, 12}) zen::test({2, 3, 12, part, item_bytes});
    zen::test({1, 1, 1, 1, item_bytes});
    zen::test({1, 4, 13, 5, item_bytes});
  }
  return zen::test_result();
}
