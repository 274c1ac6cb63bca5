// One worker's gradient in error feedback: the totals to send, and sending them element by element.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/common/keys.h"
#include "cuda/common/sent.h"
#include "xla_ffi/cpu/error_feedback.h"
#include "xla_ffi/cpu/isa.h"
#include "xla_ffi/cpu/memory.h"

namespace zen {

template <typename T>
bool is_finite(T x) {
  return key_of(bits_of(x)) < kInfinity<T>;
}

// The part of a total that is sent; the rest stays.
inline float sent_part(float total, float) { return total; }
inline double sent_part(double total, double) { return total; }
inline float sent_part(float total, Float16) { return sent_part_of_float16(total); }
inline float sent_part(float total, BFloat16) { return sent_part_of_bfloat16(total); }

// One leaf of one worker.
template <typename Update>
struct Leaf {
  using T = Accumulator<Update>;

  FeedbackArrays<Update> at;
  int64_t size;
  Momentum<T> how;
  const Isa& isa;

  bool has_velocity() const { return at.velocity != nullptr; }
  bool lists_sent() const { return at.list.is_wanted(); }

  void accumulate(int64_t begin, int64_t count, T* total, T* velocity) const {
    const T* const old = has_velocity() ? at.velocity + begin : nullptr;
    isa.accumulate<Update>()(at.update + begin, at.residual + begin, old, how, count, total, velocity);
  }

  void accumulate_in_place(int64_t begin, int64_t count) const {
    accumulate(begin, count, at.new_residual + begin, has_velocity() ? at.new_velocity + begin : nullptr);
  }

  // Sends an accumulated element. An element that was already sent leaves `sent` unchanged.
  void send(int64_t i, Update& sent) const {
    if (has_velocity()) at.new_velocity[i] = 0;
    const T total = at.new_residual[i];
    if (bits_of(total) == 0) return;
    const T part = sent_part(total, Update{});
    round_to(part, &sent);
    at.new_residual[i] = std::is_same_v<T, Update> || !is_finite(total) ? T{0} : total - part;
  }

  void prefetch(int64_t i) const {
    __builtin_prefetch(at.new_residual + i, 1);
    if (has_velocity()) __builtin_prefetch(at.new_velocity + i, 1);
    if (!lists_sent()) __builtin_prefetch(at.sent + i, 1);
  }

  // Writes out a block of what is sent and leaves zeros: past the caches if they could not hold all that is sent.
  void write_sent(int64_t begin, int64_t count, Update* block) const {
    const bool past_caches = size * static_cast<int64_t>(sizeof(Update)) >= kMinStreamBytes;
    move_out(isa, past_caches, at.sent + begin, block, count * sizeof(Update));
  }
};

}  // namespace zen
