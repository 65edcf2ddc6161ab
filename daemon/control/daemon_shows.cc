// What the daemon shows: counters page, status line, watchdog.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "daemon/control/daemon.h"
#include "daemon/control/log.h"
#include "daemon/engine/snapshot.h"

namespace gradwire::control {
namespace {

constexpr Nanoseconds kPublishBusy = std::chrono::milliseconds(250);
constexpr Nanoseconds kPublishIdle = std::chrono::milliseconds(500);
constexpr Nanoseconds kRepair = std::chrono::seconds(1);

std::string counted(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

// The engine is asked, and its answer is written by the control thread: the page's heartbeat moves only while
// both loops turn. Nothing piles up where one of them does not.
void Daemon::publish() {
  publish_timer_->start(busy_ ? kPublishBusy : kPublishIdle, [this] { publish(); });
  notifier_.retry();
  if (publishing_) {
    return;
  }
  publishing_ = true;
  auto facts = std::make_shared<std::vector<JobFacts>>(members_->facts());
  for (JobFacts& job : *facts) {
    for (JobFacts::Peer& peer : job.peers) {
      const Nanoseconds heard = coordinator_->last_heard(job.identity, peer.instance);
      peer.heartbeat_ns = std::max(peer.heartbeat_ns, static_cast<uint64_t>(heard.count()));
    }
  }
  say_status(*facts);
  // The engine's thread neither copies the facts nor frees them.
  engine_->post([this, facts = std::move(facts)](engine::Engine& engine) mutable {
    std::vector<engine::JobSnapshot> snapshots;
    std::map<engine::JobId, Results> results;
    snapshots.reserve(facts->size());
    for (const JobFacts& job : *facts) {
      snapshots.push_back(engine.snapshot(job.id));
      if (Results taken = engine.take_results(job.id); !taken.empty()) {
        results.emplace(job.id, std::move(taken));
      }
    }
    const uint64_t now = engine::MonotonicClock().now_ns();
    scheduler_.post([this, facts = std::move(facts), snapshots = std::move(snapshots),
                     results = std::move(results), now] {
      publishing_ = false;
      show(*facts, snapshots, now);
      for (const engine::JobSnapshot& snapshot : snapshots) {
        if (const auto member = members_->find(snapshot.id)) {
          member->engine_coded(snapshot);
        }
      }
      for (const auto& [job, taken] : results) {
        if (const auto member = members_->find(job)) {
          member->engine_completed(taken);
        }
      }
    });
  });
}

void Daemon::show(const std::vector<JobFacts>& facts, const std::vector<engine::JobSnapshot>& snapshots,
                  uint64_t now_ns) {
  uint64_t operations = 0;
  for (const engine::JobSnapshot& job : snapshots) {
    for (const engine::BucketSnapshot& bucket : job.buckets) {
      operations += bucket.operations;
    }
  }
  busy_ = std::exchange(operations_, operations) != operations;
  page_->publish(facts, snapshots, now_ns);
  page_->set_kept(node_->residuals->kept_bytes(), node_->residuals->kept_jobs());
  const Nanoseconds now = scheduler_.now();
  if (now - repaired_at_ < kRepair) {
    return;
  }
  repaired_at_ = now;
  log_suppressed();
  if (const Result<bool> repaired = page_->repair(); !repaired.ok()) {
    log_warning("counters_page_lost", {{"cause", repaired.status().message()}});
  } else if (*repaired) {
    log_warning("counters_page_restored", {{"cause", "somebody deleted, replaced or cut it"}});
  }
}

void Daemon::job_ends(const JobFacts& facts) {
  const bool in_order = facts.state == layout::JobState::kEnded;
  last_end_ = "; last: " + facts.identity.name + " epoch " + std::to_string(facts.epoch) +
              (in_order ? " ended" : " was aborted: " + facts.cause);
  engine_->post([this, last = std::make_shared<const JobFacts>(facts)](engine::Engine& engine) mutable {
    const uint64_t now = engine::MonotonicClock().now_ns();
    auto snapshot = engine.snapshot(last->id);
    scheduler_.post([this, last = std::move(last), snapshot = std::move(snapshot), now] {
      page_->publish_ended(*last, snapshot, now);
    });
  });
}

void Daemon::say_status(const std::vector<JobFacts>& facts) {
  size_t ranks = 0;
  for (const JobFacts& job : facts) {
    ranks += job.ranks.size();
  }
  const std::string jobs =
      facts.empty() ? "no jobs" : counted(facts.size(), "job") + ", " + counted(ranks, "rank") + " here";
  notifier_.status((stopping_ ? "stopping: " : "") + jobs + last_end_);
}

// Both loops must turn: the engine answers, and the control thread sends the answer on.
void Daemon::feed_watchdog() {
  if (notifier_.watchdog_limit().count() == 0) {
    return;
  }
  watchdog_timer_->start(notifier_.watchdog_limit() / 3, [this] { feed_watchdog(); });
  if (pinged_) {
    return;
  }
  pinged_ = true;
  engine_->post([this](engine::Engine&) {
    scheduler_.post([this] {
      pinged_ = false;
      notifier_.watchdog();
    });
  });
}

}  // namespace gradwire::control
