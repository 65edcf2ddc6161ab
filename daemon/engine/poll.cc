// One round of work, sleeping, and the two clocks.
#include <algorithm>

#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

// How often the sessions are told that the engine looks at them.
constexpr uint64_t kHeartbeatNs = 10'000'000;

}  // namespace

size_t Core::poll() {
  ++counters_.polls;
  size_t work = poll_rings();
  work += transport_.poll();

  List<Job> ready;
  ready.append(ready_links_);
  while (Job* const job = ready.pop_front()) {
    if (!job->failed) {
      work += pump(job->right);
    }
  }
  List<Bucket> turn;
  turn.append(yielded_);
  while (Bucket* const bucket = turn.pop_front()) {
    if (!bucket->job->failed) {
      std::exchange(bucket->operation.injector, nullptr).resume();
      ++work;
    }
  }
  while (Bucket* const bucket = retired_.pop_front()) {
    retire(*bucket);
    ++work;
  }
  const uint64_t now = clock_.now_ns();
  check_clocks(now);
  if (failures_) {
    report_failures();
    ++work;
  }
  if (now - heartbeat_ns_ >= kHeartbeatNs) {
    heartbeat_ns_ = now;
    for (const std::unique_ptr<Job>& job : jobs_) {
      for (RankState& rank : job->ranks) {
        rank.spec.session->daemon_heartbeat_ns.store(now, std::memory_order_relaxed);
      }
    }
  }
  return work;
}

bool Core::prepare_sleep() {
  if (failures_ || !ready_links_.empty() || !yielded_.empty() || !retired_.empty()) {
    return false;
  }
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->failed && !job->aborted) {
      continue;
    }
    for (RankState& rank : job->ranks) {
      if (!rank.left && !rank.broken && !rank.submissions.prepare_sleep()) {
        wake();
        return false;
      }
    }
  }
  if (!transport_.arm()) {
    wake();
    return false;
  }
  return true;
}

void Core::wake() {
  for (const std::unique_ptr<Job>& job : jobs_) {
    for (RankState& rank : job->ranks) {
      rank.submissions.cancel_sleep();
    }
  }
}

uint64_t Core::next_deadline_ns() const {
  uint64_t next = UINT64_MAX;
  if (const Bucket* const bucket = warnings_.front()) {
    next = bucket->clock_ns + options_.stall_warning_ns;
  }
  if (const Bucket* const bucket = deadlines_.front()) {
    next = std::min(next, bucket->clock_ns + options_.operation_timeout_ns);
  }
  return next;
}

// A bucket's clocks run from the first local submit to the completion.
void Core::start_clocks(Bucket& bucket, uint64_t now) {
  bucket.clock_ns = now;
  bucket.warned = false;
  warnings_.push_back(bucket.warning_hook);
  deadlines_.push_back(bucket.deadline_hook);
}

void Core::stop_clocks(Bucket& bucket) {
  bucket.warning_hook.unlink();
  bucket.deadline_hook.unlink();
}

void Core::check_clocks(uint64_t now) {
  for (Bucket* bucket = warnings_.front();
       bucket != nullptr && now - bucket->clock_ns >= options_.stall_warning_ns; bucket = warnings_.front()) {
    bucket->warning_hook.unlink();
    if (!bucket->job->failed) {
      bucket->warned = true;
      listener_.on_stall(stall_of(*bucket, now, false));
    }
  }
  for (Bucket* bucket = deadlines_.front();
       bucket != nullptr && now - bucket->clock_ns >= options_.operation_timeout_ns;
       bucket = deadlines_.front()) {
    bucket->deadline_hook.unlink();
    if (!bucket->job->failed) {
      listener_.on_stall(stall_of(*bucket, now, true));
    }
  }
}

}  // namespace gradwire::engine
