// One round of work, sleeping, and the two clocks.
#include <algorithm>

#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

// How often the sessions are told that the engine looks at them.
constexpr uint64_t kHeartbeatNs = 10'000'000;
// What one job may do before the others get their turn: operations that end and begin, or go on; and segments
// that these encode or copy, of about 0.1 ms each. A step may exceed it by its own burst.
constexpr size_t kJobTurn = 32;
constexpr uint64_t kTurnSegments = 16;
// Warnings told in one round.
constexpr size_t kStallTurn = 64;

}  // namespace

size_t Core::poll() {
  ++counters_.polls;
  size_t work = poll_rings();
  work += transport_.poll();

  List<Link> ready;
  ready.append(ready_links_);
  while (Link* const link = ready.pop_front()) {
    if (!link->job->failed) {
      work += pump(*link);
    }
  }
  for (const std::unique_ptr<Job>& job : jobs_) {
    work += run_job(*job);
  }
  const uint64_t now = clock_.now_ns();
  work += check_clocks(now);
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

Core::Turn Core::turn(size_t steps) const {
  Turn turn;
  turn.steps = steps;
  turn.segments_end = segments_ + kTurnSegments;
  return turn;
}

// The first step is always allowed.
bool Core::may_go_on(const Turn& turn, size_t steps) const {
  return steps == 0 || (steps < turn.steps && segments_ < turn.segments_end);
}

// What is left over comes next time.
size_t Core::run_job(Job& job) {
  if (job.yielded.empty() && job.retired.empty()) {
    return 0;
  }
  const Turn turn = this->turn(kJobTurn);
  size_t work = 0;
  while (may_go_on(turn, work) && !job.retired.empty()) {
    retire(*job.retired.pop_front());
    ++work;
  }
  for (size_t resumed = 0; may_go_on(turn, resumed) && !job.yielded.empty(); ++resumed) {
    Operation& operation = job.yielded.pop_front()->operation;
    if (!job.failed) {
      std::exchange(operation.injector, nullptr).resume();
    }
    ++work;
  }
  return work;
}

bool Core::prepare_sleep() {
  if (failures_ || !ready_links_.empty()) {
    return false;
  }
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (!job->yielded.empty() || !job->retired.empty()) {
      wake();
      return false;
    }
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

size_t Core::check_clocks(uint64_t now) {
  size_t told = 0;
  for (Bucket* bucket = warnings_.front();
       bucket != nullptr && told < kStallTurn && now - bucket->clock_ns >= options_.stall_warning_ns;
       bucket = warnings_.front(), ++told) {
    bucket->warning_hook.unlink();
    if (!bucket->job->failed) {
      bucket->warned = true;
      listener_.on_stall(stall_of(*bucket, now, false));
    }
  }
  for (Bucket* bucket = deadlines_.front();
       bucket != nullptr && told < kStallTurn && now - bucket->clock_ns >= options_.operation_timeout_ns;
       bucket = deadlines_.front(), ++told) {
    bucket->deadline_hook.unlink();
    if (!bucket->job->failed) {
      listener_.on_stall(stall_of(*bucket, now, true));
    }
  }
  return told;
}

}  // namespace gradwire::engine
