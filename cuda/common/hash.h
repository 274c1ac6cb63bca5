// Hash functions that the CPU and the CUDA kernels share. zen_jax/hashing.py has the same ones in JAX and NumPy.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ZEN_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// Always inlined, so that no copy built for a newer instruction set can replace the portable one at link time.
#define ZEN_HOST_DEVICE inline __attribute__((always_inline))
#else
#define ZEN_HOST_DEVICE inline
#endif

namespace zen {

// The finaliser of MurmurHash3: a bijection in which every bit of h affects every bit of the result.
ZEN_HOST_DEVICE uint32_t fmix32(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  h ^= h >> 16;
  return h;
}

// MurmurHash3_x86_32 of the four bytes of `key`.
ZEN_HOST_DEVICE uint32_t murmur3(uint32_t key, uint32_t seed) {
  uint32_t k = key * 0xcc9e2d51u;
  k = (k << 15) | (k >> 17);
  k *= 0x1b873593u;
  uint32_t h = seed ^ k;
  h = (h << 13) | (h >> 19);
  h = h * 5u + 0xe6546b64u;
  return fmix32(h ^ 4u);
}

// Maps a 32-bit hash to [0, range) by the high half of a product: uniform, and without a division.
ZEN_HOST_DEVICE uint32_t reduce_to_range(uint32_t hash, uint32_t range) {
  return static_cast<uint32_t>((static_cast<uint64_t>(hash) * range) >> 32);
}

// h0 as a tile rotation. Tile t holds the n consecutive units t*n .. t*n + n-1, one for every server,
// rotated by a hash of t.
ZEN_HOST_DEVICE uint32_t tile_rotation(uint32_t tile, uint32_t n, uint32_t seed) {
  return reduce_to_range(murmur3(tile, seed), n);
}

// The server of the unit at `offset` (0 .. n-1) in a tile with this rotation.
ZEN_HOST_DEVICE uint32_t server_in_tile(uint32_t offset, uint32_t rotation, uint32_t n) {
  const uint32_t s = offset + rotation;
  return s >= n ? s - n : s;
}

// The inverse: the offset in its tile of the unit that `server` owns.
ZEN_HOST_DEVICE uint32_t offset_in_tile(uint32_t server, uint32_t rotation, uint32_t n) {
  return server >= rotation ? server - rotation : server + n - rotation;
}

// h0 and h_i of the paper's Algorithm 1: MurmurHash3, each with its own seed.
ZEN_HOST_DEVICE uint32_t hash_family(uint32_t index, uint32_t i, uint32_t range, uint32_t seed) {
  return reduce_to_range(murmur3(index, seed + i), range);
}

// Marks an empty slot in Algorithm 1's memory. The paper uses 0, which loses index 0.
constexpr uint32_t kEmptySlot = 0xffffffffu;

}  // namespace zen
