// How the FFI handlers of both platforms use buffers: typed data, and checks of shapes and dtypes. Each check returns
// the sizes of the call, or an InvalidArgument error that names the buffer, its shape and the expected shape.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/common/problem.h"
#include "xla/ffi/api/ffi.h"

namespace zen {

namespace ffi = xla::ffi;

using Result = ffi::Result<ffi::AnyBuffer>;

template <typename T>
T* data(ffi::AnyBuffer buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

ffi::ErrorOr<PartitionProblem> check_partition(ffi::AnyBuffer x, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                               ffi::AnyBuffer counts);

// The problem's units are the entries of the list.
ffi::ErrorOr<PartitionProblem> check_partition_coo(ffi::AnyBuffer indices, ffi::AnyBuffer values, ffi::AnyBuffer count,
                                                   ffi::AnyBuffer positions, ffi::AnyBuffer bucket_values,
                                                   ffi::AnyBuffer counts);

ffi::ErrorOr<UniqueIdsProblem> check_unique_ids(ffi::AnyBuffer ids, ffi::AnyBuffer unique, ffi::AnyBuffer slots,
                                                 ffi::AnyBuffer count);

ffi::ErrorOr<AggregateProblem> check_aggregate(ffi::AnyBuffer positions, ffi::AnyBuffer values, ffi::AnyBuffer counts,
                                               int64_t divisor, ffi::AnyBuffer shard);

ffi::ErrorOr<AggregateEncodeProblem> check_aggregate_encode(ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                                            ffi::AnyBuffer counts, int64_t divisor, int64_t size,
                                                            ffi::AnyBuffer words, ffi::AnyBuffer units,
                                                            ffi::AnyBuffer count);

ffi::ErrorOr<AggregateEncodeProblem> check_aggregate_for_others(ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                                                ffi::AnyBuffer counts, int64_t divisor, int64_t size,
                                                                ffi::AnyBuffer words, ffi::AnyBuffer units,
                                                                ffi::AnyBuffer held, ffi::AnyBuffer nonzero);

ffi::ErrorOr<EncodeProblem> check_encode(ffi::AnyBuffer shard, ffi::AnyBuffer words, ffi::AnyBuffer values,
                                         ffi::AnyBuffer count);

ffi::ErrorOr<DecodeProblem> check_decode(ffi::AnyBuffer words, ffi::AnyBuffer values, ffi::AnyBuffer out);

ffi::ErrorOr<DecodeProblem> check_place_own(ffi::AnyBuffer x, ffi::AnyBuffer words, ffi::AnyBuffer positions,
                                            ffi::AnyBuffer values, ffi::AnyBuffer counts, int64_t divisor,
                                            ffi::AnyBuffer placed);

// `messages` holds one message for each bucket.
ffi::ErrorOr<MessageProblem> check_pack(ffi::AnyBuffer head, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                        ffi::AnyBuffer counts, int64_t capacity,
                                        const std::vector<ffi::AnyBuffer>& messages);

ffi::ErrorOr<MessageProblem> check_unpack(ffi::AnyBuffer messages, ffi::AnyBuffer head, ffi::AnyBuffer positions,
                                          ffi::AnyBuffer values);

ffi::ErrorOr<MessageProblem> check_unpack_joined(ffi::AnyBuffer messages, ffi::AnyBuffer counts,
                                                 ffi::AnyBuffer positions, ffi::AnyBuffer values, int64_t capacity);

ffi::ErrorOr<HierarchicalHashProblem> check_hierarchical_hash(ffi::AnyBuffer indices, int64_t n, int64_t r1, int64_t r2,
                                                              int64_t k, ffi::AnyBuffer memory, ffi::AnyBuffer counts,
                                                              ffi::AnyBuffer overflow);

// A gradient has `rank` dimensions; all buffers share those before them.
ffi::ErrorOr<FeedbackProblem> check_send_largest(ffi::AnyBuffer update, int64_t rank,
                                                 ffi::AnyBuffer residual, ffi::AnyBuffer velocity, ffi::AnyBuffer scale,
                                                 ffi::AnyBuffer bounds, int64_t chunks, ffi::AnyBuffer sent,
                                                 ffi::AnyBuffer new_residual, ffi::AnyBuffer new_velocity);

ffi::ErrorOr<FeedbackProblem> check_list_largest(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                                 ffi::AnyBuffer velocity, ffi::AnyBuffer scale, ffi::AnyBuffer bounds,
                                                 int64_t chunks, ffi::AnyBuffer indices, ffi::AnyBuffer values,
                                                 ffi::AnyBuffer count, ffi::AnyBuffer new_residual,
                                                 ffi::AnyBuffer new_velocity);

ffi::ErrorOr<FeedbackProblem> check_send_drawn(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                               ffi::AnyBuffer step, int64_t k, ffi::AnyBuffer sent,
                                               ffi::AnyBuffer new_residual);

ffi::ErrorOr<FeedbackProblem> check_send_reaching(ffi::AnyBuffer update, int64_t rank, ffi::AnyBuffer residual,
                                                  ffi::AnyBuffer sent, ffi::AnyBuffer new_residual);

// scratch is u8[*, S] with S at least `bytes`.
ffi::Error check_scratch(const char* target, ffi::AnyBuffer scratch, int64_t batch, int64_t bytes);

}  // namespace zen
