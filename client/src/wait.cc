// Completions: the waiting side.
#include <sched.h>

#include "client/src/error.h"
#include "client/src/job.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kTestLookNs = 5'000'000;
constexpr int64_t kQuietMs = 1500;  // more than the second between two heartbeats: worth a word

void append_done(gw_job* job, gw_bucket* bucket) {
  bucket->previous_done = job->newest_done;
  bucket->next_done = nullptr;
  (job->newest_done != nullptr ? job->newest_done->next_done : job->oldest_done) = bucket;
  job->newest_done = bucket;
}

void remove_done(gw_job* job, gw_bucket* bucket) {
  (bucket->previous_done != nullptr ? bucket->previous_done->next_done : job->oldest_done) =
      bucket->next_done;
  (bucket->next_done != nullptr ? bucket->next_done->previous_done : job->newest_done) =
      bucket->previous_done;
}

// Stores one completion in its bucket.
gw_status accept(gw_job* job, const layout::Completion& completion) {
  gw_bucket* bucket = job->buckets.find(completion.user_data);
  // Acquire pairs with submit's release: sequence is that of the operation in flight.
  if (bucket == nullptr || bucket->id != completion.bucket ||
      bucket->state.load(std::memory_order_acquire) != kInFlight || completion.sequence != bucket->sequence ||
      completion.status < GW_OK || completion.status > GW_ERR_INTERNAL || completion.result_slot != 0) {
    return end_job(job, GW_ERR_PROTOCOL,
                   say("gradwired completed an operation that is not in flight: bucket ", completion.bucket,
                       ", sequence ", completion.sequence, ", status ", completion.status, ", slot ",
                       completion.result_slot));
  }
  bucket->status = completion.status;
  bucket->result_flags = completion.flags & GW_RESULT_NOT_FINITE;
  job->in_flight.fetch_sub(1, std::memory_order_relaxed);
  bucket->state.store(kDone, std::memory_order_relaxed);  // read by this side only
  if (bucket != &job->barrier) {
    append_done(job, bucket);
  }
  return GW_OK;
}

gw_status drain(gw_job* job) {
  layout::Completion completion;
  for (;;) {
    switch (job->completions.pop(&completion)) {
      case layout::RingState::kOk:
        if (const gw_status status = accept(job, completion); status != GW_OK) {
          return status;
        }
        break;
      case layout::RingState::kEmpty:
        return GW_OK;
      default:
        return end_job(job, GW_ERR_PROTOCOL, "gradwired's counter of the completion ring makes no sense");
    }
  }
}

gw_bucket* pick(gw_job* job, gw_bucket* wanted) {
  if (wanted == nullptr) {
    return job->oldest_done;
  }
  return wanted->state.load(std::memory_order_relaxed) == kDone ? wanted : nullptr;
}

// Hands a finished operation to the caller; its bucket may be used for the next one.
gw_status hand_out(gw_job* job, gw_bucket* bucket, uint32_t* flags) {
  if (bucket != &job->barrier) {
    remove_done(job, bucket);
  }
  const gw_status status = bucket->status;
  if (flags != nullptr) {
    *flags = bucket->result_flags;
  }
  gw_status result = GW_OK;
  if (status != GW_OK) {
    result = ended(job);
    if (result == GW_OK) {
      result = fail(status, say("gradwired ended the operation on bucket ", bucket->name, " (number ",
                                bucket->sequence, ") with \"", gw_status_name(status), "\""));
    }
  }
  // Release pairs with submit's and destroy's acquire.
  bucket->state.store(kIdle, std::memory_order_release);
  return result;
}

// Spins a little while yielding; true if something has come.
bool spin_for_completion(gw_job* job) {
  const int64_t until = now_ns() + kSpinNs;
  do {
    ::sched_yield();
    if (job->completions.ready()) {
      return true;
    }
  } while (now_ns() < until);
  return false;
}

gw_status timed_out(gw_job* job, const gw_bucket* wanted, int64_t timeout_ms) {
  const std::string what = wanted == nullptr ? "any of the job's operations"
                           : wanted == &job->barrier
                               ? "the barrier"
                               : say("operation ", wanted->sequence, " on bucket ", wanted->name);
  const int64_t quiet_ms = job->pulse.quiet_ms();
  return fail(GW_ERR_TIMEOUT, say(what, " did not end within ", timeout_ms, " ms; it stays in flight",
                                  quiet_ms > kQuietMs ? say(", but gradwired has not moved for ", quiet_ms,
                                                            " ms: see gradwire status")
                                                      : ""));
}

gw_status wait_until_picked(gw_job* job, gw_bucket* wanted, int64_t timeout_ms) {
  const int64_t limit_ms =
      timeout_ms < 0 ? job->operation_timeout_ms + job->peer_timeout_ms + kMarginMs : timeout_ms;
  const Deadline deadline = Deadline::after_ms(limit_ms);
  bool may_spin = job->spin && !job->daemon_woken.exchange(false, std::memory_order_relaxed);
  for (;;) {
    if (const gw_status status = drain(job); status != GW_OK) {
      return status;
    }
    if (pick(job, wanted) != nullptr) {
      return GW_OK;
    }
    if (const gw_status status = ended(job); status != GW_OK) {
      return status;
    }
    if (deadline.passed()) {
      return timed_out(job, wanted, limit_ms);
    }
    if (may_spin && spin_for_completion(job)) {
      continue;
    }
    may_spin = false;
    gw_status status = look_at_pulse(job);
    if (status == GW_OK) {
      status = sleep(job, deadline);
    }
    if (status != GW_OK) {
      // What was finished before the end still counts.
      const std::string sentence = gw_last_error();
      return drain(job) == GW_OK && pick(job, wanted) != nullptr ? GW_OK : fail(status, sentence);
    }
  }
}

gw_status refuse_idle(const gw_bucket* bucket) {
  return fail(GW_ERR_INVALID,
              say("bucket ", bucket->name, " has no operation to wait for: submit one first"));
}

template <typename Body>
gw_status on_waiting_side(gw_job* job, Body&& body) {
  const SideLock side(&job->waiting);
  return side.entered() ? body() : refuse_second_thread("waiting");
}

// A look without sleeping: completions, the abort mark, now and then the socket.
gw_status look_around(gw_job* job) {
  if (const gw_status status = drain(job); status != GW_OK) {
    return status;
  }
  if (const gw_status status = ended(job); status != GW_OK) {
    return status;
  }
  const int64_t now = now_ns();
  if (now >= job->next_look_ns && !job->connection.requesting()) {
    job->next_look_ns = now + kTestLookNs;
    const gw_status status = look_at_socket(job);
    return status != GW_OK ? status : look_at_pulse(job);
  }
  return GW_OK;
}

}  // namespace

gw_status wait_for(gw_job* job, gw_bucket* wanted, int64_t timeout_ms, gw_bucket** ended_bucket,
                   uint32_t* flags) {
  if (const gw_status status = wait_until_picked(job, wanted, timeout_ms); status != GW_OK) {
    return status;
  }
  gw_bucket* bucket = pick(job, wanted);
  *ended_bucket = bucket;
  return hand_out(job, bucket, flags);
}

}  // namespace gradwire::client

using namespace gradwire::client;  // NOLINT(google-build-using-namespace): this file is the library's edge

gw_status gw_wait(gw_bucket* bucket, int64_t timeout_ms, uint32_t* flags) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(bucket); status != GW_OK) {
      return status;
    }
    return on_waiting_side(bucket->job, [&]() -> gw_status {
      if (bucket->state.load(std::memory_order_relaxed) == kIdle) {
        const gw_status status = ended(bucket->job);
        return status != GW_OK ? status : refuse_idle(bucket);
      }
      gw_bucket* ended_bucket = nullptr;
      return wait_for(bucket->job, bucket, timeout_ms, &ended_bucket, flags);
    });
  });
}

gw_status gw_wait_any(gw_job* job, int64_t timeout_ms, gw_bucket** bucket, uint32_t* flags) {
  if (bucket == nullptr) {
    return fail(GW_ERR_INVALID, "the place for the bucket is NULL");
  }
  *bucket = nullptr;
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(job); status != GW_OK) {
      return status;
    }
    return on_waiting_side(job, [&]() -> gw_status {
      // Relaxed: what this thread knows to be submitted it has heard of from the submitting thread.
      const uint32_t barriers = job->barrier.state.load(std::memory_order_relaxed) == kInFlight ? 1 : 0;
      if (job->oldest_done == nullptr && job->in_flight.load(std::memory_order_relaxed) <= barriers) {
        const gw_status status = ended(job);
        return status != GW_OK ? status : fail(GW_ERR_NOT_FOUND, "the job has no operation in flight");
      }
      return wait_for(job, nullptr, timeout_ms, bucket, flags);
    });
  });
}

gw_status gw_test(gw_bucket* bucket, int* done, uint32_t* flags) {
  if (done == nullptr) {
    return fail(GW_ERR_INVALID, "the place for done is NULL");
  }
  *done = 0;
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(bucket); status != GW_OK) {
      return status;
    }
    gw_job* job = bucket->job;
    return on_waiting_side(job, [&]() -> gw_status {
      const uint32_t state = bucket->state.load(std::memory_order_relaxed);
      const gw_status status = state == kDone ? GW_OK : look_around(job);
      if (gw_bucket* ended_bucket = pick(job, bucket)) {
        *done = 1;
        return hand_out(job, ended_bucket, flags);
      }
      return status == GW_OK && state == kIdle ? refuse_idle(bucket) : status;
    });
  });
}

gw_status gw_barrier(gw_job* job, int64_t timeout_ms) {
  return at_the_edge([&]() -> gw_status {
    if (const gw_status status = check_handle(job); status != GW_OK) {
      return status;
    }
    const SideLock side(&job->submitting);
    if (!side.entered()) {
      return refuse_second_thread("submitting");
    }
    return on_waiting_side(job, [&]() -> gw_status {
      if (job->barrier.state.load(std::memory_order_relaxed) == kIdle) {
        const gw_status status = submit(&job->barrier, gradwire::layout::kOpBarrier, GW_SUM, 1.0, 0);
        if (status != GW_OK) {
          return status;
        }
      }
      gw_bucket* ended_bucket = nullptr;
      return wait_for(job, &job->barrier, timeout_ms, &ended_bucket, nullptr);
    });
  });
}
