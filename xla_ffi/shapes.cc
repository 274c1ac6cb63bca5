#include "xla_ffi/shapes.h"

#include <limits>
#include <vector>

#include "cuda/common/bits.h"
#include "xla_ffi/checker.h"

namespace zen {
namespace {

// Checks what every kind of error feedback has. Returns the `rank` dimensions of a gradient.
Dims check_feedback(Checker& check, ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                    ffi::AnyBuffer new_residual) {
  check.in_range("rank", rank, 0, kMaxRank);
  if (!check.ok()) return {};
  const Dims dims = check.first("update", update, rank);
  const ffi::DataType kept = update.element_type() == ffi::F64 ? ffi::F64 : ffi::F32;
  check.float_dtype("update", update);
  check.in_range("size", product(dims), 0, kMaxPosition);
  check.array("residual", residual, kept, dims);
  check.array("new_residual", new_residual, kept, dims);
  return dims;
}

// Checks what sending the largest has in addition.
void check_largest(Checker& check, const Dims& dims, ffi::AnyBuffer residual, ffi::AnyBuffer velocity,
                   ffi::AnyBuffer scale, ffi::AnyBuffer bounds, int64_t chunks, ffi::AnyBuffer new_velocity) {
  const ffi::DataType kept = residual.element_type();
  // No velocity is an array [0], whatever the gradient's rank; a batch may be empty, too.
  const size_t batch_rank = residual.dimensions().size() - dims.size();
  const auto given = velocity.dimensions();
  const bool has_velocity = given.size() != batch_rank + 1 || given.back() != 0;
  const Dims velocity_dims = has_velocity ? dims : Dims{0};
  check.in_range("chunks", chunks, 0, product(dims) / kSampleChunk);
  check.array("velocity", velocity, kept, velocity_dims);
  check.array("new_velocity", new_velocity, kept, velocity_dims);
  check.array("scale", scale, kept, {});
  check.array("bounds", bounds, ffi::S32, {4});
}

struct Inbox {
  int64_t n;
  int64_t capacity;
  int64_t width;
};

// Checks what every kernel that sums the workers' messages has.
Inbox check_inbox(Checker& check, ffi::AnyBuffer positions, ffi::AnyBuffer values, ffi::AnyBuffer counts,
                  int64_t divisor) {
  const Dims bucket = check.first("positions", positions, 2);
  const int64_t n = bucket[0], capacity = bucket[1], width = check.trailing("values", values, 3)[2];
  check.dtype("positions", positions, ffi::S32);
  check.float_dtype("values", values);
  check.servers(n);
  check.capacity(capacity);
  check.shape("values", values, {n, capacity, width});
  check.array("counts", counts, ffi::S32, {n});
  check.in_range("divisor", divisor, 1, std::numeric_limits<int64_t>::max());
  return {n, capacity, width};
}

int64_t unit_bytes(int64_t width, ffi::AnyBuffer values) {
  return width * static_cast<int64_t>(ffi::ByteWidth(values.element_type()));
}

// Checks the parts of messages, with room for all that the buckets hold: n buckets, or one list that they share.
MessageProblem check_parts(Checker& check, int64_t n, int64_t head_words, ffi::AnyBuffer head, ffi::AnyBuffer positions,
                           ffi::AnyBuffer values, bool joinable) {
  const Dims units = check.trailing("values", values, 3);
  const int64_t room = units[1], listed = check.trailing("positions", positions, 2)[1];
  check.float_dtype("values", values);
  check.servers(n);
  check.capacity(room);
  const int64_t lists = joinable && units[0] == 1 ? 1 : n;
  check.array("head", head, ffi::S32, {n, head_words});
  check.array("positions", positions, ffi::S32, {lists, listed == 0 ? 0 : room});
  check.shape("values", values, {lists, room, units[2]});
  return {check.batch(), n, head_words, listed != 0, lists < n, room, room, unit_bytes(units[2], values)};
}

template <typename Problem>
ffi::ErrorOr<Problem> result(const Checker& check, const Problem& problem) {
  if (!check.ok()) return ffi::Unexpected(check.error());
  return problem;
}

}  // namespace

ffi::ErrorOr<PartitionProblem> check_partition(ffi::AnyBuffer x, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                               ffi::AnyBuffer counts) {
  Checker check("zen_partition");
  const Dims in = check.first("x", x, 2);
  const Dims bucket = check.trailing("positions", positions, 2);
  const int64_t units = in[0], width = in[1], n = bucket[0], capacity = bucket[1];
  check.float_dtype("x", x);
  check.dtype("positions", positions, ffi::S32);
  check.servers(n);
  check.capacity(capacity);
  check.array("values", values, x.element_type(), {n, capacity, width});
  check.array("counts", counts, ffi::S32, {n});
  if (check.ok()) check.in_range("the number of units a server", ceil_div(units, n), 0, kMaxPosition);
  return result(check, PartitionProblem{check.batch(), units, width, n, capacity});
}

ffi::ErrorOr<PartitionProblem> check_partition_coo(ffi::AnyBuffer indices, ffi::AnyBuffer values, ffi::AnyBuffer count,
                                                   ffi::AnyBuffer positions, ffi::AnyBuffer bucket_values,
                                                   ffi::AnyBuffer counts) {
  Checker check("zen_partition_coo");
  const Dims list = check.first("indices", indices, 1);
  const Dims bucket = check.trailing("positions", positions, 2);
  const int64_t n = bucket[0], capacity = bucket[1];
  check.dtype("indices", indices, ffi::S32);
  check.float_dtype("values", values);
  check.dtype("positions", positions, ffi::S32);
  check.servers(n);
  check.capacity(capacity);
  check.in_range("the number of indices", list[0], 0, kMaxPosition);
  check.shape("values", values, list);
  check.array("count", count, ffi::S32, {});
  check.array("bucket_values", bucket_values, values.element_type(), bucket);
  check.array("counts", counts, ffi::S32, {n});
  return result(check, PartitionProblem{check.batch(), list[0], 1, n, capacity});
}

ffi::ErrorOr<UniqueIdsProblem> check_unique_ids(ffi::AnyBuffer ids, ffi::AnyBuffer unique, ffi::AnyBuffer slots,
                                                 ffi::AnyBuffer count) {
  Checker check("zen_unique_ids");
  const Dims list = check.first("ids", ids, 1);
  check.dtype("ids", ids, ffi::S32);
  check.in_range("the number of ids", list[0], 0, kMaxPosition);
  check.array("unique", unique, ffi::S32, list);
  check.array("slots", slots, ffi::S32, list);
  check.array("count", count, ffi::S32, {});
  return result(check, UniqueIdsProblem{check.batch(), list[0]});
}

ffi::ErrorOr<AggregateProblem> check_aggregate(ffi::AnyBuffer positions, ffi::AnyBuffer values, ffi::AnyBuffer counts,
                                               int64_t divisor, ffi::AnyBuffer shard) {
  Checker check("zen_aggregate");
  const Inbox inbox = check_inbox(check, positions, values, counts, divisor);
  const int64_t size = check.trailing("shard", shard, 2)[0];
  check.in_range("size", size, 0, kMaxPosition);
  check.array("shard", shard, values.element_type(), {size, inbox.width});
  return result(check, AggregateProblem{check.batch(), inbox.n, inbox.capacity, inbox.width, size});
}

ffi::ErrorOr<AggregateEncodeProblem> check_aggregate_encode(ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                                            ffi::AnyBuffer counts, int64_t divisor, int64_t size,
                                                            ffi::AnyBuffer words, ffi::AnyBuffer units,
                                                            ffi::AnyBuffer count) {
  Checker check("zen_aggregate_encode");
  const Inbox inbox = check_inbox(check, positions, values, counts, divisor);
  const int64_t room = check.trailing("units", units, 2)[0];
  check.in_range("size", size, 0, kMaxPosition);
  check.capacity(room);
  check.array("units", units, values.element_type(), {room, inbox.width});
  check.array("count", count, ffi::S32, {});
  if (check.ok()) check.array("words", words, ffi::U32, {bitmap_words(size)});
  return result(check, AggregateEncodeProblem{{check.batch(), inbox.n, inbox.capacity, inbox.width, size}, room});
}

ffi::ErrorOr<AggregateEncodeProblem> check_aggregate_for_others(ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                                                ffi::AnyBuffer counts, int64_t divisor, int64_t size,
                                                                ffi::AnyBuffer words, ffi::AnyBuffer units,
                                                                ffi::AnyBuffer held, ffi::AnyBuffer nonzero) {
  Checker check("zen_aggregate_for_others");
  const Inbox inbox = check_inbox(check, positions, values, counts, divisor);
  const int64_t room = check.trailing("units", units, 3)[1];
  check.in_range("n", inbox.n, 2, kMaxServers);
  check.in_range("size", size, 1, kMaxPosition);
  check.capacity(room);
  check.array("units", units, values.element_type(), {inbox.n, room, inbox.width});
  check.array("held", held, ffi::S32, {inbox.n});
  check.array("nonzero", nonzero, ffi::S32, {});
  if (check.ok()) check.array("words", words, ffi::U32, {inbox.n, bitmap_words(size)});
  return result(check, AggregateEncodeProblem{{check.batch(), inbox.n, inbox.capacity, inbox.width, size}, room});
}

ffi::ErrorOr<EncodeProblem> check_encode(ffi::AnyBuffer shard, ffi::AnyBuffer words, ffi::AnyBuffer values,
                                         ffi::AnyBuffer count) {
  Checker check("zen_hash_bitmap_encode");
  const Dims in = check.first("shard", shard, 2);
  const Dims message = check.trailing("values", values, 2);
  const int64_t size = in[0], width = in[1], capacity = message[0];
  check.float_dtype("shard", shard);
  check.capacity(capacity);
  check.in_range("size", size, 0, kMaxPosition);
  check.array("words", words, ffi::U32, {bitmap_words(size)});
  check.array("values", values, shard.element_type(), {capacity, width});
  check.array("count", count, ffi::S32, {});
  return result(check, EncodeProblem{check.batch(), size, width, bitmap_words(size), capacity});
}

ffi::ErrorOr<DecodeProblem> check_decode(ffi::AnyBuffer words, ffi::AnyBuffer values, ffi::AnyBuffer out) {
  Checker check("zen_hash_bitmap_decode");
  const Dims bitmap = check.first("words", words, 2);
  const Dims message = check.trailing("values", values, 3);
  const Dims dense = check.trailing("out", out, 2);
  const int64_t n = bitmap[0], capacity = message[1], units = dense[0], width = dense[1];
  check.float_dtype("values", values);
  check.dtype("out", out, values.element_type());
  check.servers(n);
  check.capacity(capacity);
  check.shape("values", values, {n, capacity, width});
  if (check.ok()) {
    check.in_range("the number of units a server", ceil_div(units, n), 0, kMaxPosition);
    check.array("words", words, ffi::U32, {n, bitmap_words(ceil_div(units, n))});
  }
  return result(check, DecodeProblem{check.batch(), units, width, n, bitmap[1], capacity});
}

ffi::ErrorOr<DecodeProblem> check_place_own(ffi::AnyBuffer x, ffi::AnyBuffer words, ffi::AnyBuffer positions,
                                            ffi::AnyBuffer values, ffi::AnyBuffer counts, int64_t divisor,
                                            ffi::AnyBuffer placed) {
  Checker check("zen_place_own");
  const Inbox inbox = check_inbox(check, positions, values, counts, divisor);
  const Dims dense = check.trailing("x", x, 2);
  check.array("x", x, values.element_type(), {dense[0], inbox.width});
  check.array("placed", placed, x.element_type(), dense);
  if (!check.ok()) return ffi::Unexpected(check.error());
  const int64_t size = ceil_div(dense[0], inbox.n);
  check.in_range("the number of units a server", size, 0, kMaxPosition);
  check.array("words", words, ffi::U32, {inbox.n, bitmap_words(size)});
  return result(
      check, DecodeProblem{check.batch(), dense[0], inbox.width, inbox.n, bitmap_words(size), inbox.capacity});
}

ffi::ErrorOr<MessageProblem> check_pack(ffi::AnyBuffer head, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                        ffi::AnyBuffer counts, int64_t capacity,
                                        const std::vector<ffi::AnyBuffer>& messages) {
  Checker check("zen_pack");
  const Dims first = check.first("head", head, 2);
  const MessageProblem problem = check_parts(check, first[0], first[1], head, positions, values, /*joinable=*/true);
  check.array("counts", counts, ffi::S32, {problem.n});
  check.in_range("capacity", capacity, 1, problem.room);
  check.in_range("the number of messages", messages.size(), problem.n, problem.n);
  MessageProblem packed = problem;
  packed.capacity = capacity;
  for (const ffi::AnyBuffer& message : messages) {
    if (check.ok()) check.array("message", message, ffi::U32, {packed.words()});
  }
  return result(check, packed);
}

ffi::ErrorOr<MessageProblem> check_unpack(ffi::AnyBuffer messages, ffi::AnyBuffer head, ffi::AnyBuffer positions,
                                          ffi::AnyBuffer values) {
  Checker check("zen_unpack");
  const int64_t n = check.first("messages", messages, 2)[0];
  const int64_t head_words = check.trailing("head", head, 2)[1];
  const MessageProblem problem = check_parts(check, n, head_words, head, positions, values, /*joinable=*/false);
  if (check.ok()) check.array("messages", messages, ffi::U32, {n, problem.words()});
  return result(check, problem);
}

ffi::ErrorOr<MessageProblem> check_unpack_joined(ffi::AnyBuffer messages, ffi::AnyBuffer counts,
                                                 ffi::AnyBuffer positions, ffi::AnyBuffer values, int64_t capacity) {
  Checker check("zen_unpack_joined");
  const Dims sent = check.first("messages", messages, 2);
  const Dims units = check.trailing("values", values, 2);
  const int64_t n = sent[0], room = units[0];
  check.dtype("messages", messages, ffi::U32);
  check.float_dtype("values", values);
  check.servers(n);
  check.in_range("capacity", capacity, 1, sent[1]);
  check.array("counts", counts, ffi::S32, {n});
  check.array("positions", positions, ffi::S32, {room});
  if (!check.ok()) return ffi::Unexpected(check.error());
  MessageProblem problem{check.batch(), n, 0, true, true, room, capacity, unit_bytes(units[1], values)};
  problem.head_words = sent[1] - problem.words();
  check.in_range("the number of words in a head", problem.head_words, 0, kMaxPosition);
  return result(check, problem);
}

ffi::ErrorOr<HierarchicalHashProblem> check_hierarchical_hash(ffi::AnyBuffer indices, int64_t n, int64_t r1, int64_t r2,
                                                              int64_t k, ffi::AnyBuffer memory, ffi::AnyBuffer counts,
                                                              ffi::AnyBuffer overflow) {
  Checker check("zen_hierarchical_hash");
  const Dims in = check.first("indices", indices, 1);
  check.dtype("indices", indices, ffi::S32);
  check.servers(n);
  check.in_range("r1", r1, 0, kMaxPosition);
  check.in_range("r2", r2, 0, kMaxPosition);
  check.in_range("k", k, 0, kMaxPosition);
  check.in_range("the number of indices", in[0], 0, kMaxPosition);
  check.array("memory", memory, ffi::U32, {n, r1 + r2});
  check.array("counts", counts, ffi::S32, {n});
  check.array("overflow", overflow, ffi::S32, {});
  return result(check, HierarchicalHashProblem{check.batch(), in[0], n, r1, r2, k});
}

ffi::ErrorOr<FeedbackProblem> check_send_largest(ffi::AnyBuffer update, int64_t rank,
                                                 ffi::AnyBuffer residual, ffi::AnyBuffer velocity, ffi::AnyBuffer scale,
                                                 ffi::AnyBuffer bounds, int64_t chunks, ffi::AnyBuffer sent,
                                                 ffi::AnyBuffer new_residual, ffi::AnyBuffer new_velocity) {
  Checker check("zen_send_largest");
  const Dims dims = check_feedback(check, update, rank, residual, new_residual);
  check.array("sent", sent, update.element_type(), dims);
  check_largest(check, dims, residual, velocity, scale, bounds, chunks, new_velocity);
  return result(check, FeedbackProblem{check.batch(), product(dims)});
}

ffi::ErrorOr<FeedbackProblem> check_list_largest(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                                 ffi::AnyBuffer velocity, ffi::AnyBuffer scale, ffi::AnyBuffer bounds,
                                                 int64_t chunks, ffi::AnyBuffer indices, ffi::AnyBuffer values,
                                                 ffi::AnyBuffer count, ffi::AnyBuffer new_residual,
                                                 ffi::AnyBuffer new_velocity) {
  Checker check("zen_list_largest");
  const Dims dims = check_feedback(check, update, rank, residual, new_residual);
  check_largest(check, dims, residual, velocity, scale, bounds, chunks, new_velocity);
  const Dims room = check.trailing("indices", indices, 1);
  check.dtype("indices", indices, ffi::S32);
  check.array("values", values, update.element_type(), room);
  check.array("count", count, ffi::S32, {});
  return result(check, FeedbackProblem{check.batch(), product(dims)});
}

ffi::ErrorOr<FeedbackProblem> check_send_drawn(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                               ffi::AnyBuffer step, int64_t k, ffi::AnyBuffer sent,
                                               ffi::AnyBuffer new_residual) {
  Checker check("zen_send_drawn");
  const Dims dims = check_feedback(check, update, rank, residual, new_residual);
  const int64_t size = product(dims);
  check.array("sent", sent, update.element_type(), dims);
  check.array("step", step, ffi::U32, {});
  check.in_range("k", k, 1, size);
  return result(check, FeedbackProblem{check.batch(), size});
}

ffi::ErrorOr<FeedbackProblem> check_send_reaching(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                                  ffi::AnyBuffer sent, ffi::AnyBuffer new_residual) {
  Checker check("zen_send_reaching");
  const Dims dims = check_feedback(check, update, rank, residual, new_residual);
  const int64_t size = product(dims);
  check.array("sent", sent, update.element_type(), dims);
  return result(check, FeedbackProblem{check.batch(), size});
}

ffi::Error check_scratch(const char* target, ffi::AnyBuffer scratch, int64_t batch, int64_t bytes) {
  const Dims dims = dims_of(scratch);
  if (scratch.element_type() == ffi::U8 && !dims.empty() && dims.back() >= bytes &&
      static_cast<int64_t>(scratch.element_count()) == batch * dims.back()) {
    return ffi::Error::Success();
  }
  return ffi::Error::InvalidArgument(std::string(target) + ": scratch has shape " + to_string(dims) + ", expected " +
                                     std::to_string(batch) + " times at least " + std::to_string(bytes) + " bytes");
}

}  // namespace zen
