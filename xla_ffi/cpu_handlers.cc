// XLA FFI handlers of the CPU kernels.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/attributes.h"
#include "xla_ffi/cpu/aggregate.h"
#include "xla_ffi/cpu/aggregate_encode.h"
#include "xla_ffi/cpu/aggregate_for_others.h"
#include "xla_ffi/cpu/error_feedback.h"
#include "xla_ffi/cpu/hash_bitmap_decode.h"
#include "xla_ffi/cpu/hash_bitmap_encode.h"
#include "xla_ffi/cpu/hierarchical_hash.h"
#include "xla_ffi/cpu/isa.h"
#include "xla_ffi/cpu/message.h"
#include "xla_ffi/cpu/partition.h"
#include "xla_ffi/cpu/partition_coo.h"
#include "xla_ffi/cpu/place_own.h"
#include "xla_ffi/cpu/pool_parallel.h"
#include "xla_ffi/cpu/unique_ids.h"
#include "xla_ffi/registration.h"
#include "xla_ffi/shapes.h"

namespace zen {

// XLA's pool as a type of our own: a later XLA may bring a binding for its own type.
struct Pool : xla::ffi::ThreadPool {
  Pool(xla::ffi::ThreadPool pool) : ThreadPool(pool) {}  // NOLINT
};

}  // namespace zen

template <>
struct xla::ffi::CtxBinding<zen::Pool> {
  using Ctx = ThreadPool;
};

namespace zen {
namespace {

// The cores that this process may use, counted once: glibc opens files of /sys for it, which takes longer than a small
// kernel.
int64_t cores() {
  static const int64_t count = [] {
#if defined(__linux__)
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return int64_t{CPU_COUNT(&usable)};
#endif
    return std::max<int64_t>(1, std::thread::hardware_concurrency());
  }();
  return count;
}

// Runs a kernel on XLA's pool unless the check of its buffers failed; running out of memory becomes an error.
template <typename Problem, typename Kernel>
ffi::Error launch(Pool pool, const ffi::ErrorOr<Problem>& problem, Kernel&& kernel) {
  if (problem.has_error()) return problem.error();
  const PoolParallel<Pool> parallel(pool, std::min(pool.num_threads() + 1, cores()));
  try {
    kernel(Context{chosen_isa(), parallel});
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what());
  }
  return ffi::Error::Success();
}

// A kernel that runs kernel(Bits{}, context) with the unsigned integer as wide as the float type.
template <typename Kernel>
auto for_bits(ffi::DataType type, Kernel kernel) {
  return [kernel, type](const Context& context) {
    switch (ffi::ByteWidth(type)) {
      case 2:
        return kernel(uint16_t{}, context);
      case 4:
        return kernel(uint32_t{}, context);
      default:
        return kernel(uint64_t{}, context);
    }
  };
}

// A kernel that runs kernel(T{}, context) with the float type.
template <typename Kernel>
auto for_float(ffi::DataType type, Kernel kernel) {
  return [kernel, type](const Context& context) {
    switch (type) {
      case ffi::F16:
        return kernel(Float16{}, context);
      case ffi::BF16:
        return kernel(BFloat16{}, context);
      case ffi::F32:
        return kernel(float{}, context);
      default:
        return kernel(double{}, context);
    }
  };
}

// The remaining results of a call.
ffi::ErrorOr<std::vector<ffi::AnyBuffer>> buffers(const ffi::RemainingRets& remaining) {
  std::vector<ffi::AnyBuffer> found;
  for (size_t i = 0; i < remaining.size(); ++i) {
    auto buffer = remaining.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return ffi::Unexpected(buffer.error());
    found.push_back(**buffer);
  }
  return found;
}

template <typename T>
std::vector<T*> pointers(const std::vector<ffi::AnyBuffer>& buffers) {
  std::vector<T*> found;
  for (const ffi::AnyBuffer& buffer : buffers) found.push_back(data<T>(buffer));
  return found;
}

// Lets a result begin as an operand. XLA gives both the same memory, but only if the caller declared them aliases.
void begin_as(ffi::AnyBuffer operand, Result result) {
  if (operand.untyped_data() == result->untyped_data()) return;
  std::copy_n(data<const char>(operand), operand.size_bytes(), data<char>(*result));
}

ffi::Error partition_handler(Pool pool, ffi::AnyBuffer x, Result positions, Result values, Result counts,
                             attr::Seed seed) {
  const auto problem = check_partition(x, *positions, *values, *counts);
  return launch(pool, problem, for_bits(x.element_type(), [&](auto bits, const Context& context) {
    using Bits = decltype(bits);
    partition(*problem, data<const Bits>(x), *seed, data<int32_t>(*positions), data<Bits>(*values),
              data<int32_t>(*counts), context);
  }));
}

ffi::Error partition_coo_handler(Pool pool, ffi::AnyBuffer indices, ffi::AnyBuffer values, ffi::AnyBuffer count,
                                 Result positions, Result bucket_values, Result counts, attr::Seed seed) {
  const auto problem = check_partition_coo(indices, values, count, *positions, *bucket_values, *counts);
  return launch(pool, problem, for_bits(values.element_type(), [&](auto bits, const Context& context) {
    using Bits = decltype(bits);
    partition_coo(*problem, data<const int32_t>(indices), data<const Bits>(values), data<const int32_t>(count), *seed,
                  data<int32_t>(*positions), data<Bits>(*bucket_values), data<int32_t>(*counts), context);
  }));
}

ffi::Error unique_ids_handler(Pool pool, ffi::AnyBuffer ids, Result unique, Result slots, Result count,
                              attr::Fill fill) {
  const auto problem = check_unique_ids(ids, *unique, *slots, *count);
  return launch(pool, problem, [&](const Context& context) {
    unique_ids(*problem, data<const int32_t>(ids), *fill, data<int32_t>(*unique), data<int32_t>(*slots),
               data<int32_t>(*count), context);
  });
}

ffi::Error aggregate_handler(Pool pool, ffi::AnyBuffer positions, ffi::AnyBuffer values, ffi::AnyBuffer counts,
                             Result shard, attr::Divisor divisor) {
  const auto problem = check_aggregate(positions, values, counts, *divisor, *shard);
  return launch(pool, problem, for_float(values.element_type(), [&](auto element, const Context& context) {
    using T = decltype(element);
    aggregate(*problem, data<const int32_t>(positions), data<const T>(values), data<const int32_t>(counts), *divisor,
              data<T>(*shard), context);
  }));
}

ffi::Error aggregate_encode_handler(Pool pool, ffi::AnyBuffer positions, ffi::AnyBuffer values, ffi::AnyBuffer counts,
                                    Result words, Result units, Result count, attr::Divisor divisor, attr::Size size) {
  const auto problem = check_aggregate_encode(positions, values, counts, *divisor, *size, *words, *units, *count);
  return launch(pool, problem, for_float(values.element_type(), [&](auto element, const Context& context) {
    using T = decltype(element);
    aggregate_encode(*problem, data<const int32_t>(positions), data<const T>(values), data<const int32_t>(counts),
                     *divisor, data<uint32_t>(*words), data<T>(*units), data<int32_t>(*count), context);
  }));
}

ffi::Error aggregate_for_others_handler(Pool pool, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                        ffi::AnyBuffer counts, Result words, Result units, Result held, Result nonzero,
                                        attr::Divisor divisor, attr::Size size) {
  const auto problem =
      check_aggregate_for_others(positions, values, counts, *divisor, *size, *words, *units, *held, *nonzero);
  return launch(pool, problem, for_float(values.element_type(), [&](auto element, const Context& context) {
    using T = decltype(element);
    aggregate_for_others(*problem, data<const int32_t>(positions), data<const T>(values),
                         data<const int32_t>(counts), *divisor, data<uint32_t>(*words), data<T>(*units),
                         data<int32_t>(*held), data<int32_t>(*nonzero), context);
  }));
}

ffi::Error encode_handler(Pool pool, ffi::AnyBuffer shard, Result words, Result values, Result count) {
  const auto problem = check_encode(shard, *words, *values, *count);
  return launch(pool, problem, for_bits(shard.element_type(), [&](auto bits, const Context& context) {
    using Bits = decltype(bits);
    hash_bitmap_encode(*problem, data<const Bits>(shard), data<uint32_t>(*words), data<Bits>(*values),
                       data<int32_t>(*count), context);
  }));
}

ffi::Error decode_handler(Pool pool, ffi::AnyBuffer words, ffi::AnyBuffer values, Result out, attr::Seed seed) {
  const auto problem = check_decode(words, values, *out);
  return launch(pool, problem, for_bits(values.element_type(), [&](auto bits, const Context& context) {
    using Bits = decltype(bits);
    hash_bitmap_decode(*problem, data<const uint32_t>(words), data<const Bits>(values), *seed, data<Bits>(*out),
                       context);
  }));
}

ffi::Error place_own_handler(Pool pool, ffi::AnyBuffer x, ffi::AnyBuffer words, ffi::AnyBuffer positions,
                             ffi::AnyBuffer values, ffi::AnyBuffer counts, Result placed, attr::Divisor divisor,
                             attr::Seed seed) {
  const auto problem = check_place_own(x, words, positions, values, counts, *divisor, *placed);
  return launch(pool, problem, for_float(x.element_type(), [&](auto element, const Context& context) {
    begin_as(x, placed);
    using T = decltype(element);
    place_own(*problem, data<const uint32_t>(words), data<const int32_t>(positions), data<const T>(values),
              data<const int32_t>(counts), *divisor, *seed, data<T>(*placed), context);
  }));
}

ffi::Error pack_handler(Pool pool, ffi::AnyBuffer head, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                        ffi::AnyBuffer counts, ffi::RemainingRets results, int64_t capacity, int32_t beyond) {
  const auto messages = buffers(results);
  if (messages.has_error()) return messages.error();
  const auto problem = check_pack(head, positions, values, counts, capacity, *messages);
  const std::vector<uint32_t*> to = pointers<uint32_t>(*messages);
  const PartsToPack parts{data<const int32_t>(head), data<const int32_t>(positions), data<const char>(values)};
  return launch(pool, problem, [&](const Context& context) {
    pack(*problem, parts, data<const int32_t>(counts), beyond, to, context);
  });
}

// BindTo does not infer the binding of a call with any number of arguments or results.
XLA_FFI_Error* call_pack(XLA_FFI_CallFrame* frame) {
  static const auto* const handler = ffi::Ffi::Bind()
                                         .Ctx<ffi::ThreadPool>()
                                         .Arg<ffi::AnyBuffer>()
                                         .Arg<ffi::AnyBuffer>()
                                         .Arg<ffi::AnyBuffer>()
                                         .Arg<ffi::AnyBuffer>()
                                         .RemainingRets()
                                         .Attr<int64_t>("capacity")
                                         .Attr<int32_t>("beyond")
                                         .To(pack_handler)
                                         .release();
  return handler->Call(frame);
}

ffi::Error unpack_handler(Pool pool, ffi::AnyBuffer messages, Result head, Result positions, Result values) {
  const auto problem = check_unpack(messages, *head, *positions, *values);
  const UnpackedParts parts{data<int32_t>(*head), data<int32_t>(*positions), data<char>(*values)};
  return launch(pool, problem, [&](const Context& context) {
    unpack(*problem, data<const uint32_t>(messages), parts, context);
  });
}

ffi::Error unpack_joined_handler(Pool pool, ffi::AnyBuffer messages, ffi::AnyBuffer counts, Result positions,
                                 Result values, attr::Capacity capacity) {
  const auto problem = check_unpack_joined(messages, counts, *positions, *values, *capacity);
  return launch(pool, problem, [&](const Context& context) {
    unpack_joined(*problem, data<const uint32_t>(messages), data<const int32_t>(counts), data<int32_t>(*positions),
                  data<char>(*values), context);
  });
}

ffi::Error hierarchical_hash_handler(Pool pool, ffi::AnyBuffer indices, Result memory, Result counts, Result overflow,
                                     attr::N n, attr::R1 r1, attr::R2 r2, attr::K k, attr::Seed seed) {
  const auto problem = check_hierarchical_hash(indices, *n, *r1, *r2, *k, *memory, *counts, *overflow);
  return launch(pool, problem, [&](const Context& context) {
    hierarchical_hash(*problem, data<const uint32_t>(indices), *seed, data<uint32_t>(*memory), data<int32_t>(*counts),
                      data<int32_t>(*overflow), context);
  });
}

// Without velocities, and without an array for what is sent.
template <typename Update>
FeedbackArrays<Update> arrays_of(ffi::AnyBuffer update, ffi::AnyBuffer residual, Result new_residual) {
  using T = Accumulator<Update>;
  return {data<const Update>(update), data<const T>(residual), nullptr, nullptr, data<T>(*new_residual), nullptr};
}

template <typename Update>
FeedbackArrays<Update> arrays_of(ffi::AnyBuffer update, ffi::AnyBuffer residual, Result sent, Result new_residual) {
  auto arrays = arrays_of<Update>(update, residual, new_residual);
  arrays.sent = data<Update>(*sent);
  return arrays;
}

template <typename Update>
void set_velocity(FeedbackArrays<Update>& arrays, ffi::AnyBuffer velocity, Result new_velocity) {
  using T = Accumulator<Update>;
  if (velocity.element_count() == 0) return;
  arrays.velocity = data<const T>(velocity);
  arrays.new_velocity = data<T>(*new_velocity);
}

ffi::Error send_largest_handler(Pool pool, ffi::AnyBuffer update, ffi::AnyBuffer residual, ffi::AnyBuffer velocity,
                                ffi::AnyBuffer scale, ffi::AnyBuffer bounds, Result sent, Result new_residual,
                                Result new_velocity, attr::Rank rank, attr::Momentum momentum, attr::Chunks chunks) {
  const auto problem = check_send_largest(update, *rank, residual, velocity, scale, bounds, *chunks, *sent,
                                          *new_residual, *new_velocity);
  return launch(pool, problem, for_float(update.element_type(), [&](auto element, const Context& context) {
    using T = Accumulator<decltype(element)>;
    auto arrays = arrays_of<decltype(element)>(update, residual, sent, new_residual);
    set_velocity(arrays, velocity, new_velocity);
    send_largest(*problem, arrays, data<const LargestBounds>(bounds), data<const T>(scale), *momentum, *chunks,
                 context);
  }));
}

ffi::Error list_largest_handler(Pool pool, ffi::AnyBuffer update, ffi::AnyBuffer residual, ffi::AnyBuffer velocity,
                                ffi::AnyBuffer scale, ffi::AnyBuffer bounds, Result indices, Result values,
                                Result count, Result new_residual, Result new_velocity, attr::Rank rank,
                                attr::Momentum momentum, attr::Chunks chunks) {
  const auto problem = check_list_largest(update, *rank, residual, velocity, scale, bounds, *chunks, *indices, *values,
                                          *count, *new_residual, *new_velocity);
  return launch(pool, problem, for_float(update.element_type(), [&](auto element, const Context& context) {
    const int64_t room = indices->dimensions().back();
    using Update = decltype(element);
    auto arrays = arrays_of<Update>(update, residual, new_residual);
    arrays.list = {data<int32_t>(*indices), data<Update>(*values), data<int32_t>(*count), room};
    set_velocity(arrays, velocity, new_velocity);
    send_largest(*problem, arrays, data<const LargestBounds>(bounds), data<const Accumulator<Update>>(scale),
                 *momentum, *chunks, context);
  }));
}

ffi::Error send_drawn_handler(Pool pool, ffi::AnyBuffer update, ffi::AnyBuffer residual, ffi::AnyBuffer step,
                              Result sent, Result new_residual, attr::Rank rank, attr::K k) {
  const auto problem = check_send_drawn(update, *rank, residual, step, *k, *sent, *new_residual);
  return launch(pool, problem, for_float(update.element_type(), [&](auto element, const Context& context) {
    const auto arrays = arrays_of<decltype(element)>(update, residual, sent, new_residual);
    send_drawn(*problem, arrays, data<const uint32_t>(step), *k, context);
  }));
}

ffi::Error send_reaching_handler(Pool pool, ffi::AnyBuffer update, ffi::AnyBuffer residual, Result sent,
                                 Result new_residual, attr::Rank rank, attr::Key key) {
  const auto problem = check_send_reaching(update, *rank, residual, *sent, *new_residual);
  return launch(pool, problem, for_float(update.element_type(), [&](auto element, const Context& context) {
    send_reaching(*problem, arrays_of<decltype(element)>(update, residual, sent, new_residual), *key, context);
  }));
}

}  // namespace

const std::vector<Registration>& registrations() {
  static const auto* const table = new std::vector<Registration>{
      {"zen_partition", call<partition_handler>},
      {"zen_partition_coo", call<partition_coo_handler>},
      {"zen_unique_ids", call<unique_ids_handler>},
      {"zen_aggregate", call<aggregate_handler>},
      {"zen_aggregate_encode", call<aggregate_encode_handler>},
      {"zen_aggregate_for_others", call<aggregate_for_others_handler>},
      {"zen_hash_bitmap_encode", call<encode_handler>},
      {"zen_hash_bitmap_decode", call<decode_handler>},
      {"zen_place_own", call<place_own_handler>},
      {"zen_pack", call_pack},
      {"zen_unpack", call<unpack_handler>},
      {"zen_unpack_joined", call<unpack_joined_handler>},
      {"zen_hierarchical_hash", call<hierarchical_hash_handler>},
      {"zen_send_largest", call<send_largest_handler>},
      {"zen_list_largest", call<list_largest_handler>},
      {"zen_send_drawn", call<send_drawn_handler>},
      {"zen_send_reaching", call<send_reaching_handler>},
  };
  return *table;
}

}  // namespace zen
