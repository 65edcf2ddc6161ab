// What the daemon is told: to read its configuration again, and to stop.
#include <algorithm>
#include <iterator>

#include "config/policy_json.h"
#include "daemon/control/daemon.h"
#include "daemon/control/log.h"
#include "daemon/control/log_writer.h"

namespace gradwire::control {
namespace {

constexpr Nanoseconds kLook = std::chrono::milliseconds(10);
// From the end of the waiting to the end of the process: farewells, the engine's last round, UCX.
constexpr Nanoseconds kEnding = std::chrono::seconds(5);

}  // namespace

void Daemon::tell_stop_limit() {
  if (hooks_.stop_limit) {
    hooks_.stop_limit(config_.clocks.drain_timeout + kEnding);
  }
}

void Daemon::reload() {
  if (stopping_ || !hooks_.reload) {
    return;
  }
  notifier_.reloading();
  const Result<config::Config> fresh = hooks_.reload();
  if (!fresh.ok()) {
    log_error("reload_failed", {{"cause", fresh.status().message()}, {"remains", "the old configuration"}});
    notifier_.ready();
    return;
  }
  size_t applied = 0;
  size_t restart = 0;
  for (const config::Change& change : config::list_changes(config_, *fresh)) {
    if (apply(change, *fresh)) {
      ++applied;
      log_info("option_changed", {{"option", change.option}, {"old", change.before}, {"new", change.after}});
    } else {
      ++restart;
      log_warning("option_needs_restart",
                  {{"option", change.option}, {"in_effect", change.before}, {"in_file", change.after}});
    }
  }
  coordinator_->set_policy(config::policy_to_json(config_.compression));
  coordinator_->set_plan(config_.plan);
  node_->quotas->set_limits(config_.quotas);
  set_log_level(config_.log.level);
  tell_stop_limit();
  log_info("reloaded", {{"changed", std::to_string(applied)}, {"need_restart", std::to_string(restart)}});
  notifier_.ready();
}

// False: the option cannot change while the daemon runs.
bool Daemon::apply(const config::Change& change, const config::Config& fresh) {
  if (change.option.starts_with("compression.")) {
    config_.compression = fresh.compression;
  } else if (change.option.starts_with("plan.")) {
    config_.plan = fresh.plan;
  } else if (change.option.starts_with("quotas.")) {
    config_.quotas = fresh.quotas;
  } else if (change.option == "log.level") {
    config_.log.level = fresh.log.level;
  } else if (change.option == "clocks.drain_timeout") {
    config_.clocks.drain_timeout = fresh.clocks.drain_timeout;
  } else {
    return false;
  }
  return true;
}

Status Daemon::stopping() const {
  return Status(Code::kUnavailable, "the daemon on node " + config_.node.name + " is stopping");
}

// Nobody joins any more; the operations that are in flight at this moment may end.
void Daemon::stop() {
  if (stopping_) {
    return;
  }
  stopping_ = true;
  notifier_.stopping();
  coordinator_->drain(stopping());
  members_->drain(stopping());
  say_status(members_->facts());
  const auto limit = std::chrono::duration_cast<Nanoseconds>(config_.clocks.drain_timeout);
  if (limit.count() == 0) {
    end_jobs(kGoodbye);
    return;
  }
  drain_timer_->start(limit, [this] {
    log_warning("drain_timeout", {{"operations", std::to_string(draining_ ? draining_->size() : 0)}});
    end_jobs(kGoodbye);
  });
  watch_drain();
}

void Daemon::watch_drain() {
  engine_->post([this](engine::Engine& engine) {
    scheduler_.post([this, now = engine.in_flight()] { drained(now); });
  });
}

void Daemon::drained(const InFlight& now) {
  if (jobs_ended_) {
    return;
  }
  InFlight left;
  if (draining_) {
    std::set_intersection(draining_->begin(), draining_->end(), now.begin(), now.end(),
                          std::back_inserter(left));
  } else {
    left = now;
    log_info("draining",
             {{"operations", std::to_string(left.size())}, {"jobs", std::to_string(members_->size())}});
  }
  draining_ = std::move(left);
  if (draining_->empty()) {
    end_jobs(kGoodbye);
    return;
  }
  look_timer_->start(kLook, [this] { watch_drain(); });
}

// What was sent needs a moment on its way: `goodbye`.
void Daemon::end_jobs(Nanoseconds goodbye) {
  if (!goodbye_timer_) {
    return;  // it never started
  }
  stopping_ = true;
  if (!jobs_ended_) {
    jobs_ended_ = true;
    drain_timer_->stop();
    look_timer_->stop();
    const Status cause(Code::kAborted, stopping().message());
    peers_->stop();
    local_->stop();
    coordinator_->stop(cause);
    members_->stop(cause);
  }
  goodbye_timer_->start(goodbye, [this] {
    local_->close_all();
    orderly_ = true;
    context_.stop();
  });
}

}  // namespace gradwire::control
