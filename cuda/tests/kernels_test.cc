// Runs the CUDA kernels' own source on the host, under random schedules, against direct oracles.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cuda/common/bits.h"
#include "cuda/emulation/cuda_runtime.h"
#include "cuda/hash_bitmap_decode.h"
#include "cuda/hash_bitmap_encode.h"
#include "cuda/partition.h"
#include "cuda/partition_coo.h"
#include "cuda/range_sums.cuh"
#include "cuda/staged_chunk.cuh"
#include "cuda/tests/feedback_cases.h"
#include "cuda/tests/harness.h"
#include "cuda/tests/primitive_cases.h"
#include "cuda/tests/sum_and_hash_cases.h"

namespace zen::cuda {
namespace {

template <typename Bits>
constexpr Bits kUnwritten = static_cast<Bits>(0x7ad57ad57ad57ad5);

// Bits of a non-zero float, including NaNs, infinities and subnormals.
template <typename Bits>
Bits random_nonzero() {
  for (;;) {
    const Bits bits = static_cast<Bits>(rng());
    if (is_nonzero(bits) && bits != kUnwritten<Bits>) return bits;
  }
}

// A tensor of units, of which a share `density` is non-zero; zeros are +0 or -0.
template <typename Bits>
void fill(Buffer<Bits>* x, int64_t width, double density) {
  const Bits minus_zero = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const int64_t hot = pick(1, 64);
  bool inside = uniform() < density;
  const bool clustered = pick(0, 2) == 0;
  for (int64_t u = 0; u < x->size() / width; ++u) {
    if (!clustered || u % hot == 0) inside = uniform() < density;
    for (int64_t i = 0; i < width; ++i) (*x)[u * width + i] = pick(0, 1) ? Bits{0} : minus_zero;
    if (!inside) continue;
    if (width > 1 && pick(0, 1)) {
      (*x)[u * width + pick(0, width - 1)] = random_nonzero<Bits>();
    } else {
      for (int64_t i = 0; i < width; ++i) (*x)[u * width + i] = random_nonzero<Bits>();
    }
  }
}

template <typename Bits>
bool row_is_nonzero(const Bits* row, int64_t width) {
  return std::any_of(row, row + width, [](Bits bits) { return is_nonzero(bits); });
}

template <typename Bits>
Element element_of() {
  return sizeof(Bits) == 2   ? (pick(0, 1) ? Element::kFloat16 : Element::kBfloat16)
         : sizeof(Bits) == 4 ? Element::kFloat32
                             : Element::kFloat64;
}

Buffer<uint32_t> make_scratch(int64_t batch, int64_t bytes) {
  return Buffer<uint32_t>((batch * bytes + 3) / 4, 0xdeadbeef);
}

template <typename Bits>
void test_partition(const PartitionProblem& p, double density, uint32_t seed) {
  char name[200];
  std::snprintf(name, sizeof(name),
                "partition of %zu-byte elements: batch %ld units %ld width %ld n %ld capacity %ld density %g seed %u",
                sizeof(Bits), long(p.batch), long(p.units), long(p.width), long(p.n), long(p.capacity), density, seed);
  Buffer<Bits> x(p.batch * p.units * p.width);
  fill(&x, p.width, density);
  Buffer<int32_t> positions(p.batch * p.n * p.capacity, -7);
  Buffer<Bits> values(p.batch * p.n * p.capacity * p.width, kUnwritten<Bits>);
  Buffer<int32_t> counts(p.batch * p.n, -7);
  Buffer<uint32_t> scratch =
      make_scratch(p.batch, partition_scratch_bytes(p.units, p.width, sizeof(Bits), p.n, p.capacity));
  CHECK(partition(p, element_of<Bits>(), seed, x.data(), positions.data(), values.data(), counts.data(), scratch.data(),
                  nullptr) == cudaSuccess,
        "%s", name);

  std::vector<int32_t> expected_counts(p.batch * p.n);
  std::vector<int32_t> expected_positions(p.batch * p.n * p.capacity, -7);
  std::vector<Bits> expected_values(p.batch * p.n * p.capacity * p.width, kUnwritten<Bits>);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t u = 0; u < p.units; ++u) {
      const Bits* const row = x.data() + (b * p.units + u) * p.width;
      if (!row_is_nonzero(row, p.width)) continue;
      const uint32_t tile = static_cast<uint32_t>(u / p.n);
      const int64_t bucket = b * p.n + server_in_tile(u % p.n, tile_rotation(tile, p.n, seed), p.n);
      const int64_t slot = expected_counts[bucket]++;
      if (slot >= p.capacity) continue;
      expected_positions[bucket * p.capacity + slot] = tile;
      std::copy(row, row + p.width, expected_values.begin() + (bucket * p.capacity + slot) * p.width);
    }
  }
  CHECK(std::equal(expected_counts.begin(), expected_counts.end(), counts.data()), "counts of %s", name);
  CHECK(std::equal(expected_positions.begin(), expected_positions.end(), positions.data()), "positions of %s", name);
  CHECK(std::equal(expected_values.begin(), expected_values.end(), values.data()), "values of %s", name);
}

// p.units entries; the count says that fewer are listed, or more.
template <typename Bits>
void test_partition_coo(const PartitionProblem& p, uint32_t seed) {
  char name[200];
  std::snprintf(name, sizeof(name),
                "partition of a list of %zu-byte elements: batch %ld entries %ld n %ld capacity %ld seed %u",
                sizeof(Bits), long(p.batch), long(p.units), long(p.n), long(p.capacity), seed);
  Buffer<int32_t> indices(p.batch * p.units), count(p.batch), positions(p.batch * p.n * p.capacity, -7);
  Buffer<Bits> values(p.batch * p.units), bucket_values(p.batch * p.n * p.capacity, kUnwritten<Bits>);
  Buffer<int32_t> counts(p.batch * p.n, -7);
  const int64_t widest_gap = pick(0, 1) ? 3 : (int64_t{1} << 31) / (p.units + 1);
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t index = pick(0, widest_gap - 1);
    for (int64_t i = b * p.units; i < (b + 1) * p.units; ++i, index += pick(1, widest_gap)) {
      indices[i] = static_cast<int32_t>(index);
      values[i] = random_nonzero<Bits>();
    }
    count[b] = static_cast<int32_t>(pick(0, 2) ? pick(0, p.units) : p.units + 5);
  }
  Buffer<uint32_t> scratch = make_scratch(p.batch, partition_coo_scratch_bytes(p.units, p.n));
  CHECK(partition_coo(p, element_of<Bits>(), seed, indices.data(), values.data(), count.data(), positions.data(),
                      bucket_values.data(), counts.data(), scratch.data(), nullptr) == cudaSuccess,
        "%s", name);

  std::vector<int32_t> expected_counts(p.batch * p.n), expected_positions(positions.size(), -7);
  std::vector<Bits> expected_values(positions.size(), kUnwritten<Bits>);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < std::min<int64_t>(count[b], p.units); ++i) {
      const int64_t index = indices[b * p.units + i], tile = index / p.n;
      const int64_t bucket = b * p.n + server_in_tile(index % p.n, tile_rotation(tile, p.n, seed), p.n);
      const int64_t slot = expected_counts[bucket]++;
      if (slot >= p.capacity) continue;
      expected_positions[bucket * p.capacity + slot] = static_cast<int32_t>(tile);
      expected_values[bucket * p.capacity + slot] = values[b * p.units + i];
    }
  }
  CHECK(std::equal(expected_counts.begin(), expected_counts.end(), counts.data()), "counts of %s", name);
  CHECK(std::equal(expected_positions.begin(), expected_positions.end(), positions.data()), "positions of %s", name);
  CHECK(std::equal(expected_values.begin(), expected_values.end(), bucket_values.data()), "values of %s", name);
}

template <typename Bits>
void test_encode(EncodeProblem p, double density) {
  p.words = bitmap_words(p.size);
  char name[200];
  std::snprintf(name, sizeof(name), "encode of %zu-byte elements: batch %ld size %ld width %ld capacity %ld density %g",
                sizeof(Bits), long(p.batch), long(p.size), long(p.width), long(p.capacity), density);
  Buffer<Bits> shard(p.batch * p.size * p.width);
  fill(&shard, p.width, density);
  Buffer<uint32_t> words(p.batch * p.words, 0xabababab);
  Buffer<Bits> values(p.batch * p.capacity * p.width, kUnwritten<Bits>);
  Buffer<int32_t> count(p.batch, -7);
  Buffer<uint32_t> scratch = make_scratch(p.batch, encode_scratch_bytes(p.size, p.width, sizeof(Bits)));
  CHECK(hash_bitmap_encode(p, element_of<Bits>(), shard.data(), words.data(), values.data(), count.data(),
                           scratch.data(), nullptr) == cudaSuccess,
        "%s", name);

  for (int64_t b = 0; b < p.batch; ++b) {
    std::vector<uint32_t> expected_words(p.words);
    std::vector<Bits> expected_values(p.capacity * p.width, kUnwritten<Bits>);
    int32_t expected_count = 0;
    for (int64_t t = 0; t < p.size; ++t) {
      const Bits* const row = shard.data() + (b * p.size + t) * p.width;
      if (!row_is_nonzero(row, p.width)) continue;
      expected_words[t / 32] |= 1u << (t % 32);
      if (expected_count < p.capacity)
        std::copy(row, row + p.width, expected_values.begin() + expected_count * p.width);
      ++expected_count;
    }
    CHECK(count[b] == expected_count, "count %d, expected %d, of %s", count[b], expected_count, name);
    CHECK(std::equal(expected_words.begin(), expected_words.end(), words.data() + b * p.words), "words of %s", name);
    CHECK(std::equal(expected_values.begin(), expected_values.end(), values.data() + b * p.capacity * p.width),
          "values of %s", name);
  }
}

template <typename Bits>
void test_decode(DecodeProblem p, double density, uint32_t seed) {
  const int64_t size = ceil_div(p.units, p.n);
  p.words = bitmap_words(size);
  char name[200];
  std::snprintf(name, sizeof(name),
                "decode of %zu-byte elements: batch %ld units %ld width %ld n %ld capacity %ld density %g seed %u",
                sizeof(Bits), long(p.batch), long(p.units), long(p.width), long(p.n), long(p.capacity), density, seed);
  Buffer<uint32_t> words(p.batch * p.n * p.words);
  Buffer<Bits> values(p.batch * p.n * p.capacity * p.width);
  for (int64_t i = 0; i < values.size(); ++i) values[i] = random_nonzero<Bits>();
  for (int64_t w = 0; w < words.size(); ++w) {
    for (int bit = 0; bit < 32; ++bit) words[w] |= static_cast<uint32_t>(uniform() < density) << bit;
  }
  if (pick(0, 1)) {  // as an encoder makes them; otherwise padding bits are noise, to be ignored
    for (int64_t i = 0; i < p.batch * p.n && p.words > 0; ++i) {
      if (size % 32) words[(i + 1) * p.words - 1] &= (1u << (size % 32)) - 1;
    }
  }
  Buffer<Bits> out(p.batch * p.units * p.width, kUnwritten<Bits>);
  Buffer<uint32_t> scratch = make_scratch(p.batch, decode_scratch_bytes(p.units, p.width, sizeof(Bits), p.n));
  CHECK(hash_bitmap_decode(p, element_of<Bits>(), seed, words.data(), values.data(), out.data(), scratch.data(),
                           nullptr) == cudaSuccess,
        "%s", name);

  std::vector<Bits> expected(out.size());
  for (int64_t bucket = 0; bucket < p.batch * p.n; ++bucket) {
    const int64_t b = bucket / p.n;
    int64_t rank = 0;
    for (int64_t t = 0; t < p.words * 32; ++t) {
      if (!((words[bucket * p.words + t / 32] >> (t % 32)) & 1)) continue;
      const int64_t unit = t * p.n + offset_in_tile(bucket % p.n, tile_rotation(t, p.n, seed), p.n);
      if (unit < p.units && rank < p.capacity) {
        const Bits* const row = values.data() + (bucket * p.capacity + rank) * p.width;
        std::copy(row, row + p.width, expected.begin() + (b * p.units + unit) * p.width);
      }
      ++rank;
    }
  }
  CHECK(std::equal(expected.begin(), expected.end(), out.data()), "%s", name);
}

int64_t random_units(int64_t chunk) {
  switch (pick(0, 4)) {
    case 0:
      return pick(0, 70);
    case 1:
      return chunk * pick(1, 3) + pick(-3, 3);
    case 2:
      return chunk * pick(1, 2);
    default:
      return pick(1, 3 * chunk);
  }
}

double random_density() {
  const double choices[] = {0, 0.01, 0.05, 0.3, 0.7, 1};
  return choices[pick(0, 5)];
}

int64_t random_servers() {
  const int64_t choices[] = {1,   2,   3,   4,   7,   8,   16,   31,   32,   33,   64,
                             100, 128, 255, 511, 512, 513, 1000, 1024, 1025, 3001, 65535};
  return choices[pick(0, 21)];
}

int64_t random_width() {
  const int64_t choices[] = {2, 3, 4, 5, 8, 31, 64, 100, 128, 512, 1001, 4096, 10000};
  return choices[pick(0, 12)];
}

template <typename Bits>
void random_cases() {
  emulation::set_schedule(rng(), static_cast<int>(pick(1, 4)));
  const int64_t n = random_servers();
  const int64_t batch = pick(0, 3) ? 1 : pick(1, 3);
  const int64_t capacity = pick(0, 2) ? pick(1, 40000 / n + 2) : pick(1, 9);
  const uint32_t seed = static_cast<uint32_t>(rng());
  const int64_t units = random_units(sizeof(Bits) == 8 ? 8192 : 16384) / batch;
  const int64_t width = random_width();
  const int64_t rows = random_units(std::max<int64_t>(8, 65536 / (width * sizeof(Bits)))) / batch;
  test_partition<Bits>({batch, units, 1, n, capacity}, random_density(), seed);
  test_partition<Bits>({batch, rows, width, n, std::min<int64_t>(capacity, 50000 / (n * width) + 2)}, random_density(),
                       seed);
  test_partition_coo<Bits>({batch, units, 1, std::min<int64_t>(n, 3001), capacity}, seed);
  test_encode<Bits>({batch, units, 1, 0, pick(0, 1) ? units + 1 : pick(1, 3000)}, random_density());
  test_encode<Bits>({batch, rows, width, 0, pick(0, 1) ? rows + 1 : pick(1, 90)}, random_density());
  // A block counts each server's bits: 65535 servers would take minutes here.
  const int64_t decoded = std::min<int64_t>(n, 3001 / batch);
  test_decode<Bits>({batch, units, 1, decoded, 0, capacity}, random_density(), seed);
  test_decode<Bits>({batch, rows, width, decoded, 0, std::min<int64_t>(capacity, 50000 / (decoded * width) + 2)},
                    random_density(), seed);
}

void random_sums() {
  emulation::set_schedule(rng(), static_cast<int>(pick(1, 3)));
  const int64_t wider_than_sums = 20000;
  const int64_t width = pick(0, 1) ? 1 : pick(0, 7) ? random_width() : wider_than_sums + 4 * pick(0, 1) + pick(0, 1);
  const int64_t n = pick(0, 3) ? pick(1, 9) : pick(250, 520);
  const int64_t size = pick(0, std::max<int64_t>(3, 100000 / (width * n)));
  const AggregateProblem p = {pick(1, 2), n, pick(0, 1) ? size + 1 : pick(1, 50), width, size};
  const int64_t divisor = pick(0, 1) ? 1 : pick(2, 9);
  const double density = random_density();
  test_aggregate<float, float>(p, Element::kFloat32, density, divisor);
  test_aggregate<double, double>(p, Element::kFloat64, density, divisor);
  test_aggregate<zen::Float16, float>(p, Element::kFloat16, density, divisor);
  test_aggregate<zen::BFloat16, float>(p, Element::kBfloat16, density, divisor);
  test_unordered_positions(p);
  const int64_t indices = pick(0, 2000);
  const int64_t partitions = pick(1, 9);
  const int64_t r1 = pick(0, 2 * indices / partitions);
  test_hierarchical_hash(
      {pick(1, 2), indices, partitions, r1, pick(0, 1) ? indices : pick(0, indices / 10), pick(0, 4)},
      static_cast<uint32_t>(rng()));
}

// Buckets with room for few elements, and so many chunks that each block which moves unlisted ones takes several.
template <typename Bits>
void test_partition_runs(int64_t n, double density) {
  emulation::set_schedule(rng(), 3);
  const int64_t units = 12 * elements_per_chunk<StagedChunk>(sizeof(Bits)) - 5;
  test_partition<Bits>({2, units, 1, n, units / (15 * n)}, density, 5);
}

// A GPU whose blocks have too little shared memory for a table of rotations, or even for one pass.
void test_partition_on_a_small_gpu() {
  const int of_h200 = std::exchange(emulation::most_shared_bytes, 73 << 10);
  for (const int64_t n : {8, 128}) test_partition<uint32_t>({1, 9000, 1, n, 20}, 0.3, 5);
  test_partition_runs<uint32_t>(8, 0.02);
  emulation::most_shared_bytes = of_h200;
}

// Tiles of every size, with more non-zeros in a chunk than tiles and with fewer, in whole chunks and a ragged one. The
// second batch item is not aligned.
template <typename Bits>
void test_elements_by_servers() {
  emulation::set_schedule(rng(), 3);
  const int64_t units = 17'003;
  for (const int64_t n : {1, 2, 7, 8, 9, 100, 301}) {
    const double density = n % 2 ? 0.6 : 0.03;
    test_partition<Bits>({2, units, 1, n, units / n}, density, 5);
    test_decode<Bits>({2, units, 1, n, 0, units / n}, density, 5);
  }
}

// More chunks than a look-back's group holds, for many counters; test_large_shard has them for one.
void test_many_chunks() {
  emulation::set_schedule(rng(), 3);
  test_partition<uint32_t>({1, 560'000, 1, 40, 1800}, 0.03, 5);
}

// Bitmaps of several chunks of a directory, not all aligned.
void test_long_bitmaps() {
  emulation::set_schedule(rng(), 3);
  test_decode<uint32_t>({2, 1'100'003, 1, 1, 0, 300'000}, 0.3, 5);
}

// Rows of one pack, of several, and in several ranges of columns; fewer workers than are looked up at once, and more.
void test_sums_by_shape() {
  emulation::set_schedule(rng(), 3);
  const auto test = [](const AggregateProblem& p) {
    test_aggregate<float, float>(p, Element::kFloat32, 0.05, 3);
    test_aggregate<double, double>(p, Element::kFloat64, 0.05, 3);
    test_aggregate<zen::Float16, float>(p, Element::kFloat16, 0.05, 3);
  };
  for (const int64_t width : {1, 2, 4, 8, 12}) test({1, 3, 333, width, 333});
  test({2, 300, 77, 1, 77});
  test({1, 300, 77, 8, 77});
  test({1, 3, 3, 20004, 3});
}

// Ranges as large as a block's sums, as many as are summed at once; for a larger shard, a multiple of that number.
void test_large_shard() {
  emulation::set_schedule(rng(), 3);
  const int64_t larger = 13'375'000;
  CHECK(ceil_div(larger, rows_per_range(larger, 1, 4)) == 4 * kRangesAtOnce, "%ld rows a range",
        long(rows_per_range(larger, 1, 4)));
  const int64_t size = kRangesAtOnce * kSums<Float32> - 77;
  CHECK(rows_per_range(size, 1, 4) == kSums<Float32>, "%ld rows a range", long(rows_per_range(size, 1, 4)));
  test_aggregate<float, float>({1, 3, size / 500, 1, size}, Element::kFloat32, 0.001, 1);
}

// Parallel slots that several blocks count, and more collisions than serial slots.
void test_large_memory() {
  emulation::set_schedule(rng(), 3);
  test_hierarchical_hash({2, 3000, 1, 5000, 30, 1}, 5);
}

}  // namespace
}  // namespace zen::cuda

// Usage: kernels_test [rounds of random cases] [seed]
int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 8;
  zen::cuda::rng.seed(argc > 2 ? std::atoi(argv[2]) : 7);
  zen::cuda::test_small_divisor();
  zen::cuda::test_look_backs();
  zen::cuda::test_sums_by_shape();
  zen::cuda::test_large_shard();
  zen::cuda::test_large_memory();
  zen::cuda::test_empty_feedback();
  zen::cuda::test_partition_on_a_small_gpu();
  zen::cuda::test_elements_by_servers<uint16_t>();
  zen::cuda::test_elements_by_servers<uint32_t>();
  zen::cuda::test_elements_by_servers<uint64_t>();
  for (const double density : {0.02, 0.3}) {  // which the list has room for, or not
    zen::cuda::test_partition_runs<uint16_t>(16, density);
    zen::cuda::test_partition_runs<uint32_t>(1, density);
    zen::cuda::test_partition_runs<uint32_t>(128, density);
    zen::cuda::test_partition_runs<uint64_t>(40, density);
  }
  zen::cuda::test_many_chunks();
  zen::cuda::test_long_bitmaps();
  for (int i = 0; i < rounds; ++i) {
    zen::cuda::random_cases<uint16_t>();
    zen::cuda::random_cases<uint32_t>();
    zen::cuda::random_cases<uint64_t>();
    zen::cuda::random_sums();
    zen::cuda::random_feedback();
  }
  std::printf("passed %d rounds\n", rounds);
}
