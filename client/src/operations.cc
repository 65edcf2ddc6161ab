// Operations on buckets: the submitting side.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"
#include "config/base/loss_scale.h"

namespace gradwire::client {
namespace {

bool is_integer(gw_dtype dtype) {
  return dtype >= GW_INT32 && dtype <= GW_UINT8;
}

const char* op_name(gw_reduce_op op) {
  static constexpr const char* kNames[] = {"sum", "average", "min", "max", "product"};
  return kNames[op];
}

gw_status check_operation(const gw_bucket* bucket, gw_reduce_op op, double scale) {
  if (op > GW_PRODUCT) {
    return fail(GW_ERR_INVALID,
                say("bucket ", bucket->name, ": reduce operation ", int{op}, " does not exist"));
  }
  if (!is_loss_scale(scale)) {
    return fail(GW_ERR_INVALID,
                say("bucket ", bucket->name, ": the scale ", not_a_loss_scale(scale),
                    ": keep it there; a scaler raises it for as long as no gradient overflows"));
  }
  if (op == GW_AVERAGE && is_integer(bucket->dtype)) {
    return fail(GW_ERR_INVALID, say("bucket ", bucket->name,
                                    " holds integers, whose average is not exact: use GW_SUM and divide"));
  }
  return GW_OK;
}

gw_status check_allreduce(const gw_bucket* bucket, gw_reduce_op op, double scale) {
  if (const gw_status status = check_operation(bucket, op, scale); status != GW_OK) {
    return status;
  }
  if (op > GW_AVERAGE && (bucket->flags & GW_BUCKET_GRADIENT) != 0) {
    return fail(GW_ERR_UNSUPPORTED, say("bucket ", bucket->name, " holds gradients (codec ", bucket->codec,
                                        "), which have sum and average only: for ", op_name(op),
                                        " create a bucket without GW_BUCKET_GRADIENT"));
  }
  return GW_OK;
}

// The elements of each rank's shard.
gw_status shard_elements(const gw_bucket* bucket, uint64_t* elements) {
  const auto world = static_cast<uint64_t>(bucket->job->identity.world);
  const uint64_t rest = bucket->elements % world;
  if (rest != 0) {
    return fail(GW_ERR_INVALID,
                say("bucket ", bucket->name, " has ", bucket->elements, " elements, which ", world,
                    " ranks do not divide evenly: pad the last layer by ", world - rest));
  }
  *elements = bucket->elements / world;
  return GW_OK;
}

gw_status wake_daemon(gw_job* job) {
  const char ring = 0;
  while (::send(job->bell.get(), &ring, sizeof(ring), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) {
      break;  // a full socket has rung already
    }
    if (errno == EPIPE || errno == ECONNRESET) {
      const gw_status status = ended(job);
      return status != GW_OK ? status : end_job(job, GW_ERR_UNAVAILABLE, job->connection.gone_sentence());
    }
    if (errno != EINTR) {
      return end_job(job, GW_ERR_PROTOCOL, say("gradwired cannot be woken: ", std::strerror(errno)));
    }
  }
  return GW_OK;
}

template <typename Body>
gw_status on_submitting_side(gw_bucket* bucket, Body&& body) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(bucket); status != GW_OK) {
      return status;
    }
    const SideLock side(&bucket->job->submitting);
    return side.entered() ? body() : refuse_second_thread("submitting");
  });
}

gw_status allreduce(gw_bucket* bucket, gw_reduce_op op, double scale, uint8_t flags) {
  return on_submitting_side(bucket, [&]() -> gw_status {
    const gw_status status = check_allreduce(bucket, op, scale);
    return status != GW_OK ? status : submit(bucket, layout::kOpAllreduce, op, scale, 0, flags);
  });
}

}  // namespace

gw_status submit(gw_bucket* bucket, uint8_t operation, gw_reduce_op op, double scale, uint32_t root,
                 uint8_t flags) {
  gw_job* job = bucket->job;
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  // Acquire pairs with the waiting side's store of idle: the caller has seen that result.
  if (bucket->state.load(std::memory_order_acquire) != kIdle) {
    return fail(GW_ERR_BUSY, say("bucket ", bucket->name, " has an operation in flight: gw_wait first"));
  }
  // As many completions as submissions may be on their way, so neither ring can overflow. Relaxed: a late
  // view of the waiting side's decrement refuses at worst.
  if (job->in_flight.fetch_add(1, std::memory_order_relaxed) >= job->capacity) {
    job->in_flight.fetch_sub(1, std::memory_order_relaxed);
    return fail(GW_ERR_BUSY, say("the job has ", job->capacity,
                                 " operations in flight, as many as its ring "
                                 "holds: wait for some"));
  }
  layout::Submission submission{};
  submission.user_data = bucket->slot;
  submission.sequence = ++bucket->sequence;
  submission.scale = scale;
  submission.bucket = bucket->id;
  submission.root = root;
  submission.operation = operation;
  submission.reduce_op = op;
  submission.dtype = bucket->dtype;
  submission.flags = flags;
  // Release pairs with the waiting side's acquire load when the completion comes.
  bucket->state.store(kInFlight, std::memory_order_release);
  bool wake = false;
  if (const auto pushed = job->submissions.push(submission, &wake); pushed != layout::RingState::kOk) {
    --bucket->sequence;
    bucket->state.store(kIdle, std::memory_order_relaxed);
    job->in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (pushed == layout::RingState::kFull) {
      return fail(GW_ERR_BUSY, "gradwired has not taken the earlier submissions yet: wait for some");
    }
    return end_job(job, GW_ERR_PROTOCOL, "gradwired's counter of the submission ring makes no sense");
  }
  job->daemon_woken.store(wake, std::memory_order_relaxed);  // a hint to the waiting side
  return wake ? wake_daemon(job) : GW_OK;
}

}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

gw_status gw_allreduce_scaled(gw_bucket* bucket, gw_reduce_op op, double scale) {
  return allreduce(bucket, op, scale, 0);
}

gw_status gw_allreduce(gw_bucket* bucket, gw_reduce_op op) {
  return gw_allreduce_scaled(bucket, op, 1.0);
}

gw_status gw_flush_scaled(gw_bucket* bucket, gw_reduce_op op, double scale) {
  return allreduce(bucket, op, scale, gradwire::layout::kSubmissionFlush);
}

gw_status gw_flush(gw_bucket* bucket, gw_reduce_op op) {
  return gw_flush_scaled(bucket, op, 1.0);
}

gw_status gw_broadcast(gw_bucket* bucket, int32_t root) {
  return on_submitting_side(bucket, [&]() -> gw_status {
    if (root < 0 || root >= bucket->job->identity.world) {
      return fail(GW_ERR_NOT_FOUND, say("there is no rank ", root, " to broadcast bucket ", bucket->name,
                                        " from: the world has ", bucket->job->identity.world));
    }
    return submit(bucket, gradwire::layout::kOpBroadcast, GW_SUM, 1.0, static_cast<uint32_t>(root));
  });
}

gw_status gw_bucket_shard(const gw_bucket* bucket, int32_t rank, uint64_t* first, uint64_t* elements) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(bucket); status != GW_OK) {
      return status;
    }
    if (first == nullptr || elements == nullptr) {
      return fail(GW_ERR_INVALID, "the place for the shard is NULL");
    }
    if (rank < 0 || rank >= bucket->job->identity.world) {
      return fail(GW_ERR_NOT_FOUND, say("there is no rank ", rank, " with a shard of bucket ", bucket->name,
                                        ": the world has ", bucket->job->identity.world));
    }
    uint64_t each = 0;
    if (const gw_status status = shard_elements(bucket, &each); status != GW_OK) {
      return status;
    }
    *first = static_cast<uint64_t>(rank) * each;
    *elements = each;
    return GW_OK;
  });
}

gw_status gw_allgather(gw_bucket* bucket) {
  return on_submitting_side(bucket, [&]() -> gw_status {
    uint64_t each = 0;
    const gw_status status = shard_elements(bucket, &each);
    return status != GW_OK ? status : submit(bucket, gradwire::layout::kOpAllgather, GW_SUM, 1.0, 0);
  });
}

gw_status gw_reduce_scatter(gw_bucket* bucket, gw_reduce_op op) {
  return on_submitting_side(bucket, [&]() -> gw_status {
    if (const gw_status status = check_operation(bucket, op, 1.0); status != GW_OK) {
      return status;
    }
    uint64_t each = 0;
    const gw_status status = shard_elements(bucket, &each);
    return status != GW_OK ? status : submit(bucket, gradwire::layout::kOpReduceScatter, op, 1.0, 0);
  });
}
