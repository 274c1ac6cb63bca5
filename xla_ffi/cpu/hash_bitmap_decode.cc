#include "xla_ffi/cpu/hash_bitmap_decode.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/cpu/memory.h"
#include "xla_ffi/cpu/split.h"

namespace zen {
namespace {

// A block of the output is assembled in the first-level cache and then streamed out. If that leaves too few tiles to be
// worth visiting every server, the second-level cache is used instead.
constexpr int64_t kBlockBytes = 16 << 10;
constexpr int64_t kLargeBlockBytes = 256 << 10;
constexpr int64_t kEnoughTiles = 128;
// Bitmaps are listed a window of blocks at a time: a single block holds too few set bits of a server to be worth a
// call. The lists of all servers together stay in the second-level cache.
constexpr int64_t kWindowTiles = 1024;
constexpr int64_t kWindowListBytes = 512 << 10;
// Windows and ranges start at word boundaries of every bitmap.
constexpr int64_t kTileGrain = 64;
// Ends a list: no unit of a window has this number.
constexpr uint32_t kListEnd = ~uint32_t{0};

int64_t block_tiles(int64_t tile_bytes) {
  const int64_t enough = std::min(kEnoughTiles, kLargeBlockBytes / tile_bytes);
  return std::max<int64_t>({kBlockBytes / tile_bytes, enough, 1});
}

int64_t window_tiles(int64_t n, int64_t tiles) {
  const int64_t fitting = kWindowListBytes / (n * static_cast<int64_t>(sizeof(uint32_t)));
  const int64_t wanted = std::min({fitting, kWindowTiles, ceil_div(tiles, kTileGrain) * kTileGrain});
  return std::max(wanted / kTileGrain * kTileGrain, kTileGrain);
}

// How many bits of each of `n` bitmaps are set before bit range.begin of every range.
std::vector<int64_t> ranks_before(const uint32_t* words, int64_t stride, int64_t n, int64_t tiles, int64_t ranges,
                                  const Context& context) {
  std::vector<int64_t> ranks(ranges * n);
  if (ranges == 1) return ranks;
  context.parallel.run(ranges - 1, [&](int64_t r) {
    const Range range = range_of(r, ranges, tiles, kTileGrain);
    for (int64_t server = 0; server < n; ++server) {
      const int64_t begin = range.begin / kBitsPerWord;
      const int64_t set = context.isa.count_bits(words + server * stride + begin, bitmap_words(range.end) - begin);
      ranks[(r + 1) * n + server] = set;
    }
  });
  for (int64_t i = 2 * n; i < ranges * n; ++i) ranks[i] += ranks[i - n];
  return ranks;
}

// Decodes tiles block by block.
template <typename Bits>
class BlockDecoder {
 public:
  BlockDecoder(const DecodeProblem& p, const uint32_t* words, const Bits* values, uint32_t seed, const Isa& isa)
      : p_(p),
        words_(words),
        values_(values),
        seed_(seed),
        isa_(isa),
        window_tiles_(window_tiles(p.n, ceil_div(p.units, p.n))),
        block_tiles_(std::min({block_tiles(p.n * p.width * sizeof(Bits)), window_tiles_, ceil_div(p.units, p.n)})),
        streams_(p.units * p.width * static_cast<int64_t>(sizeof(Bits)) >= kMinStreamBytes),
        blocks_{AlignedVector<Bits>(block_tiles_ * p.n * p.width), AlignedVector<Bits>(block_tiles_ * p.n * p.width)},
        bits_(window_tiles_ + kListSlack),
        units_(p.n * (window_tiles_ + kListSlack)),
        ranks_(p.n),
        pending_(p.n) {}

  // first_ranks[server] bits of each bitmap are set before the first of the tiles.
  void decode(Range tiles, const int64_t* first_ranks, Bits* out) {
    std::copy_n(first_ranks, p_.n, ranks_.begin());
    for (int64_t tile = tiles.begin; tile < tiles.end; tile += window_tiles_) {
      const int64_t end = std::min(tile + window_tiles_, tiles.end);
      for (int64_t server = 0; server < p_.n; ++server) list_server(server, tile, end);
      for (int64_t block = tile; block < end; block += block_tiles_) {
        decode_block(tile, block, std::min(block + block_tiles_, end), out);
      }
    }
    write_out(done_.bytes);
    isa_.fence();
  }

 private:
  // An assembled block, on its way to the output.
  struct Outgoing {
    char* to = nullptr;
    char* from = nullptr;
    int64_t bytes = 0;
  };

  // The units of one server that are still to be placed, counted from the window's first unit, and their values.
  struct Pending {
    const uint32_t* unit;
    const Bits* value;
  };

  void list_server(int64_t server, int64_t tile, int64_t end) {
    int64_t& rank = ranks_[server];
    uint32_t* const units = units_.data() + server * (window_tiles_ + kListSlack);
    const int64_t count = isa_.list_bits(words_ + server * p_.words, tile, end, bits_.data());
    isa_.place(bits_.data(), count, static_cast<uint32_t>(tile), static_cast<uint32_t>(server),
               static_cast<uint32_t>(p_.n), seed_, units);
    units[std::clamp<int64_t>(p_.capacity - rank, 0, count)] = kListEnd;
    pending_[server] = {units, values_ + (server * p_.capacity + std::min(rank, p_.capacity)) * p_.width};
    rank += count;
  }

  void decode_block(int64_t window, int64_t tile, int64_t end, Bits* out) {
    const auto first = static_cast<uint32_t>((tile - window) * p_.n);
    const auto last = static_cast<uint32_t>((end - window) * p_.n);
    if (p_.width == 1) {
      fill_block<true>(first, last);
    } else {
      fill_block<false>(first, last);
    }
    const int64_t unit = tile * p_.n;
    const int64_t elements = (std::min(end * p_.n, p_.units) - unit) * p_.width;
    done_ = {reinterpret_cast<char*>(out + unit * p_.width), reinterpret_cast<char*>(filling_->data()),
             elements * static_cast<int64_t>(sizeof(Bits))};
    std::swap(filling_, leaving_);
  }

  // Assembles a block, and after every server writes out a slice of the block before it: stores past the caches take as
  // long as all the rest, and a few at a time overlap with it. What is written out is cleared for the next block.
  template <bool kOneElement>
  void fill_block(uint32_t first, uint32_t last) {
    const int64_t width = kOneElement ? 1 : p_.width;
    const int64_t slice = ceil_div(ceil_div(done_.bytes, p_.n), kCacheLine) * kCacheLine;
    Bits* const block = filling_->data();
    for (Pending& server : pending_) {
      Pending next = server;
      for (; *next.unit < last; ++next.unit, next.value += width) {
        copy_unit(block + (*next.unit - first) * width, next.value, width);
      }
      server = next;
      write_out(slice);
    }
  }

  void write_out(int64_t bytes) {
    bytes = std::min(bytes, done_.bytes);
    if (bytes == 0) return;
    move_out(isa_, streams_, done_.to, done_.from, bytes);
    done_ = {done_.to + bytes, done_.from + bytes, done_.bytes - bytes};
  }

  const DecodeProblem& p_;
  const uint32_t* const words_;
  const Bits* const values_;
  const uint32_t seed_;
  const Isa& isa_;
  const int64_t window_tiles_;
  const int64_t block_tiles_;
  const bool streams_;
  AlignedVector<Bits> blocks_[2];
  AlignedVector<Bits>* filling_ = &blocks_[0];
  AlignedVector<Bits>* leaving_ = &blocks_[1];
  Outgoing done_;
  AlignedVector<uint16_t> bits_;
  AlignedVector<uint32_t> units_;
  AlignedVector<int64_t> ranks_;  // of the servers' next units
  std::vector<Pending> pending_;
};

}  // namespace

template <typename Bits>
void hash_bitmap_decode(const DecodeProblem& p, const uint32_t* words, const Bits* values, uint32_t seed, Bits* out,
                        const Context& context) {
  const int64_t item_bytes = p.units * p.width * static_cast<int64_t>(sizeof(Bits));
  if (item_bytes == 0) return;
  advise_huge_pages(out, p.batch * item_bytes);
  const int64_t tiles = ceil_div(p.units, p.n);
  // Every range has a decoder, with blocks of at least one tile each.
  const int64_t ranges = std::min(ranges_per_item(p.batch, item_bytes, 4, context), ceil_div(tiles, kTileGrain));
  // The bitmaps of different items are adjacent, so they count as one long row of servers.
  const std::vector<int64_t> ranks = ranks_before(words, p.words, p.batch * p.n, tiles, ranges, context);
  context.parallel.run(p.batch * ranges, [&](int64_t task) {
    const int64_t b = task / ranges, r = task % ranges;
    BlockDecoder<Bits> decoder(p, words + b * p.n * p.words, values + b * p.n * p.capacity * p.width, seed,
                               context.isa);
    decoder.decode(range_of(r, ranges, tiles, kTileGrain), &ranks[(r * p.batch + b) * p.n],
                   out + b * p.units * p.width);
  });
}

#define ZEN_INSTANTIATE(Bits)                                                                                          \
  template void hash_bitmap_decode(const DecodeProblem&, const uint32_t*, const Bits*, uint32_t, Bits*, const Context&)

ZEN_INSTANTIATE(uint16_t);
ZEN_INSTANTIATE(uint32_t);
ZEN_INSTANTIATE(uint64_t);

}  // namespace zen
