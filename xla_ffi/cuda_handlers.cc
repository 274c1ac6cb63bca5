// XLA FFI handlers of the CUDA kernels. They only enqueue work on XLA's stream, so XLA may capture them in a graph.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/aggregate.h"
#include "cuda/aggregate_encode.h"
#include "cuda/hash_bitmap_decode.h"
#include "cuda/hash_bitmap_encode.h"
#include "cuda/hierarchical_hash.h"
#include "cuda/partition.h"
#include "cuda/partition_coo.h"
#include "cuda/send_largest.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/attributes.h"
#include "xla_ffi/registration.h"
#include "xla_ffi/shapes.h"

template <>
struct xla::ffi::CtxBinding<cudaStream_t> {
  using Ctx = PlatformStream<cudaStream_t>;
};

namespace zen {
namespace {

cuda::Element element(ffi::AnyBuffer buffer) {
  switch (buffer.element_type()) {
    case ffi::F64:
      return cuda::Element::kFloat64;
    case ffi::F16:
      return cuda::Element::kFloat16;
    case ffi::BF16:
      return cuda::Element::kBfloat16;
    default:
      return cuda::Element::kFloat32;
  }
}

ffi::Error status(const char* target, cudaError_t error) {
  if (error == cudaSuccess) return ffi::Error::Success();
  // The second is that of a kernel whose shared memory is set before it is launched.
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return ffi::Error::Internal(std::string(target) +
                                " was not compiled for this GPU, but by default for compute capability 8.0 and higher. "
                                "Set ZEN_JAX_KERNELS=xla to compute in pure JAX.");
  }
  return ffi::Error::Internal(std::string(target) + ": " + cudaGetErrorString(error));
}

ffi::Error partition_handler(cudaStream_t stream, ffi::AnyBuffer x, Result positions, Result values, Result counts,
                             Result scratch, attr::Seed seed) {
  const auto problem = check_partition(x, *positions, *values, *counts);
  if (problem.has_error()) return problem.error();
  const int64_t bytes =
      cuda::partition_scratch_bytes(problem->units, problem->width, ffi::ByteWidth(x.element_type()), problem->n,
                                    problem->capacity);
  if (ffi::Error error = check_scratch("zen_partition", *scratch, problem->batch, bytes); error.failure()) return error;
  return status("zen_partition",
                cuda::partition(*problem, element(x), *seed, x.untyped_data(), data<int32_t>(*positions),
                                values->untyped_data(), data<int32_t>(*counts), scratch->untyped_data(), stream));
}

ffi::Error partition_coo_handler(cudaStream_t stream, ffi::AnyBuffer indices, ffi::AnyBuffer values,
                                 ffi::AnyBuffer count, Result positions, Result bucket_values, Result counts,
                                 Result scratch, attr::Seed seed) {
  const auto problem = check_partition_coo(indices, values, count, *positions, *bucket_values, *counts);
  if (problem.has_error()) return problem.error();
  const int64_t bytes = cuda::partition_coo_scratch_bytes(problem->units, problem->n);
  if (ffi::Error error = check_scratch("zen_partition_coo", *scratch, problem->batch, bytes); error.failure()) {
    return error;
  }
  return status("zen_partition_coo",
                cuda::partition_coo(*problem, element(values), *seed, data<const int32_t>(indices),
                                    values.untyped_data(), data<const int32_t>(count), data<int32_t>(*positions),
                                    bucket_values->untyped_data(), data<int32_t>(*counts), scratch->untyped_data(),
                                    stream));
}

ffi::Error aggregate_handler(cudaStream_t stream, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                             ffi::AnyBuffer counts, Result shard, attr::Divisor divisor) {
  const auto problem = check_aggregate(positions, values, counts, *divisor, *shard);
  if (problem.has_error()) return problem.error();
  return status("zen_aggregate",
                cuda::aggregate(*problem, element(values), *divisor, data<const int32_t>(positions),
                                values.untyped_data(), data<const int32_t>(counts), shard->untyped_data(), stream));
}

ffi::Error aggregate_encode_handler(cudaStream_t stream, ffi::AnyBuffer positions, ffi::AnyBuffer values,
                                    ffi::AnyBuffer counts, Result words, Result units, Result count, Result scratch,
                                    attr::Divisor divisor, attr::Size size) {
  const auto problem = check_aggregate_encode(positions, values, counts, *divisor, *size, *words, *units, *count);
  if (problem.has_error()) return problem.error();
  const int64_t bytes =
      cuda::aggregate_encode_scratch_bytes(*size, problem->width, ffi::ByteWidth(values.element_type()));
  if (ffi::Error error = check_scratch("zen_aggregate_encode", *scratch, problem->batch, bytes); error.failure()) {
    return error;
  }
  return status("zen_aggregate_encode",
                cuda::aggregate_encode(*problem, element(values), *divisor, data<const int32_t>(positions),
                                       values.untyped_data(), data<const int32_t>(counts), data<uint32_t>(*words),
                                       units->untyped_data(), data<int32_t>(*count), scratch->untyped_data(), stream));
}

ffi::Error encode_handler(cudaStream_t stream, ffi::AnyBuffer shard, Result words, Result values, Result count,
                          Result scratch) {
  const auto problem = check_encode(shard, *words, *values, *count);
  if (problem.has_error()) return problem.error();
  const int64_t bytes = cuda::encode_scratch_bytes(problem->size, problem->width, ffi::ByteWidth(shard.element_type()));
  if (ffi::Error error = check_scratch("zen_hash_bitmap_encode", *scratch, problem->batch, bytes); error.failure()) {
    return error;
  }
  return status(
      "zen_hash_bitmap_encode",
      cuda::hash_bitmap_encode(*problem, element(shard), shard.untyped_data(), data<uint32_t>(*words),
                               values->untyped_data(), data<int32_t>(*count), scratch->untyped_data(), stream));
}

ffi::Error decode_handler(cudaStream_t stream, ffi::AnyBuffer words, ffi::AnyBuffer values, Result out, Result scratch,
                          attr::Seed seed) {
  const auto problem = check_decode(words, values, *out);
  if (problem.has_error()) return problem.error();
  const int64_t bytes = cuda::decode_scratch_bytes(problem->units, problem->width,
                                                   ffi::ByteWidth(values.element_type()), problem->n);
  if (ffi::Error error = check_scratch("zen_hash_bitmap_decode", *scratch, problem->batch, bytes); error.failure()) {
    return error;
  }
  return status("zen_hash_bitmap_decode",
                cuda::hash_bitmap_decode(*problem, element(values), *seed, data<const uint32_t>(words),
                                         values.untyped_data(), out->untyped_data(), scratch->untyped_data(), stream));
}

ffi::Error hierarchical_hash_handler(cudaStream_t stream, ffi::AnyBuffer indices, Result memory, Result counts,
                                     Result overflow, attr::N n, attr::R1 r1, attr::R2 r2, attr::K k,
                                     attr::Seed seed) {
  const auto problem = check_hierarchical_hash(indices, *n, *r1, *r2, *k, *memory, *counts, *overflow);
  if (problem.has_error()) return problem.error();
  return status("zen_hierarchical_hash",
                cuda::hierarchical_hash(*problem, *seed, data<const int32_t>(indices), data<uint32_t>(*memory),
                                        data<int32_t>(*counts), data<int32_t>(*overflow), stream));
}

cuda::SendLargestArrays arrays_of(ffi::AnyBuffer update, ffi::AnyBuffer residual, ffi::AnyBuffer velocity,
                                  Result new_residual, Result new_velocity) {
  const bool has_velocity = velocity.element_count() > 0;
  cuda::SendLargestArrays arrays = {};
  arrays.update = update.untyped_data();
  arrays.residual = residual.untyped_data();
  arrays.velocity = has_velocity ? velocity.untyped_data() : nullptr;
  arrays.new_residual = new_residual->untyped_data();
  arrays.new_velocity = has_velocity ? new_velocity->untyped_data() : nullptr;
  return arrays;
}

ffi::Error send(const char* target, cudaStream_t stream, const FeedbackProblem& problem, cuda::Element element,
                const cuda::SendLargestArrays& arrays, ffi::AnyBuffer scale, ffi::AnyBuffer bounds, Result scratch,
                double momentum, int64_t chunks) {
  const int64_t bytes = cuda::send_largest_scratch_bytes(problem.size, cuda::element_bytes(element), chunks,
                                                         arrays.velocity != nullptr);
  if (ffi::Error error = check_scratch(target, *scratch, problem.batch, bytes); error.failure()) return error;
  return status(target, cuda::send_largest(problem, element, arrays, data<const LargestBounds>(bounds),
                                           scale.untyped_data(), momentum, chunks, scratch->untyped_data(), stream));
}

ffi::Error send_largest_handler(cudaStream_t stream, ffi::AnyBuffer update, ffi::AnyBuffer residual,
                                ffi::AnyBuffer velocity, ffi::AnyBuffer scale, ffi::AnyBuffer bounds, Result sent,
                                Result new_residual, Result new_velocity, Result scratch, attr::Rank rank,
                                attr::Momentum momentum, attr::Chunks chunks) {
  const auto problem = check_send_largest(update, *rank, residual, velocity, scale, bounds, *chunks, *sent,
                                          *new_residual, *new_velocity);
  if (problem.has_error()) return problem.error();
  auto arrays = arrays_of(update, residual, velocity, new_residual, new_velocity);
  arrays.sent = sent->untyped_data();
  return send("zen_send_largest", stream, *problem, element(update), arrays, scale, bounds, scratch, *momentum,
              *chunks);
}

ffi::Error list_largest_handler(cudaStream_t stream, ffi::AnyBuffer update, ffi::AnyBuffer residual,
                                ffi::AnyBuffer velocity, ffi::AnyBuffer scale, ffi::AnyBuffer bounds, Result indices,
                                Result values, Result count, Result new_residual, Result new_velocity, Result scratch,
                                attr::Rank rank, attr::Momentum momentum, attr::Chunks chunks) {
  const auto problem = check_list_largest(update, *rank, residual, velocity, scale, bounds, *chunks, *indices, *values,
                                          *count, *new_residual, *new_velocity);
  if (problem.has_error()) return problem.error();
  auto arrays = arrays_of(update, residual, velocity, new_residual, new_velocity);
  arrays.list = {data<int32_t>(*indices), values->untyped_data(), data<int32_t>(*count), indices->dimensions().back()};
  return send("zen_list_largest", stream, *problem, element(update), arrays, scale, bounds, scratch, *momentum,
              *chunks);
}

// A handler whose enqueued work XLA may capture in a graph.
template <auto kFunction>
constexpr auto* kCapturable = call<kFunction, ffi::Traits::kCmdBufferCompatible>;

}  // namespace

const std::vector<Registration>& registrations() {
  static const auto* const table = new std::vector<Registration>{
      {"zen_partition", kCapturable<partition_handler>},
      {"zen_partition_coo", kCapturable<partition_coo_handler>},
      {"zen_aggregate", kCapturable<aggregate_handler>},
      {"zen_aggregate_encode", kCapturable<aggregate_encode_handler>},
      {"zen_hash_bitmap_encode", kCapturable<encode_handler>},
      {"zen_hash_bitmap_decode", kCapturable<decode_handler>},
      {"zen_hierarchical_hash", kCapturable<hierarchical_hash_handler>},
      {"zen_send_largest", kCapturable<send_largest_handler>},
      {"zen_list_largest", kCapturable<list_largest_handler>},
  };
  return *table;
}

}  // namespace zen
