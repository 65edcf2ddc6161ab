#include "daemon/control/member.h"

#include <algorithm>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/stall_watch.h"

namespace gradwire::control {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 53;  // of sequence numbers

}  // namespace

Member::Member(NodeContext& node, JobIdentity identity, std::string rendezvous, Hooks hooks)
    : node_(node),
      identity_(std::move(identity)),
      rendezvous_(std::move(rendezvous)),
      hooks_(std::move(hooks)),
      job_(++node.last_job),
      join_timer_(node.scheduler),
      retry_timer_(node.scheduler),
      failing_timer_(node.scheduler) {}

Member::~Member() {
  if (link_) {
    link_->close();
  }
}

std::string Member::coordinator() const {
  std::vector<uint32_t> ranks;
  for (size_t i = 0; epoch_ && i < epoch_->nodes.size(); ++i) {
    if (epoch_->nodes[i].instance == coordinator_.instance) {
      ranks = epoch_->nodes[i].ranks;
    }
  }
  if (coordinator_.name.empty()) {
    return "the coordinating daemon at " + rendezvous_;
  }
  return describe_node(coordinator_.name, ranks) + ", which coordinates the job,";
}

void Member::send(const Json& document) {
  if (link_) {
    link_->send(document);
  }
}

void Member::create_bucket(uint32_t rank, const Manifest& manifest, Reply<BucketCreated> reply) {
  if (!buckets_) {
    reply(over() ? cause_ : Status(Code::kInvalidArgument, "the job has not started"));
    return;
  }
  buckets_->create(rank, manifest, std::move(reply));
}

void Member::destroy_bucket(uint32_t rank, uint32_t bucket, const Answer& reply) {
  if (!buckets_) {
    reply(ok_status());  // it ended with the epoch
    return;
  }
  buckets_->destroy(rank, bucket, reply);
}

void Member::traffic(const Reply<Traffic>& reply) {
  if (over()) {
    reply(cause_);
    return;
  }
  node_.engine.traffic(job_, [reply](const Traffic& traffic) { reply(traffic); });
}

void Member::leave(uint32_t rank, const Answer& reply) {
  if (state_ != State::kRunning) {
    if (const auto found = locals_.find(rank); found != locals_.end()) {
      found->second.left = true;
    }
    reply(ok_status());  // nobody waits for it any more
    return;
  }
  locals_.at(rank).left = true;
  if (epoch_->nodes.size() > 1) {  // before the coordinator hears of the leave
    node_.engine.take_results(job_, [weak = weak_from_this()](const Results& results) {
      if (const auto self = weak.lock()) {
        self->engine_completed(results);
      }
    });
  }
  node_.engine.leave_rank(
      job_, rank,
      [rank, reply, weak = weak_from_this()](const Result<std::vector<engine::BucketSequence>>& last) {
        const auto self = weak.lock();
        if (self && last.ok() && !self->over()) {
          RankLeft left{rank, {}};
          for (const engine::BucketSequence& each : *last) {
            left.last.emplace_back(each.bucket, each.sequence);
          }
          for (const uint32_t bucket : self->buckets_->destroyed()) {
            left.last.emplace_back(bucket, kNoLimit);
          }
          self->send(left_document("leave", left));
        }
        reply(self && self->over() ? ok_status() : last.status());
      });
}

std::optional<int32_t> Member::holder(uint32_t rank) const {
  const auto found = locals_.find(rank);
  if (over() || found == locals_.end() || found->second.left || !found->second.gone.empty()) {
    return std::nullopt;
  }
  return found->second.join.pid;
}

void Member::bury_the_dead() {
  const auto self = shared_from_this();
  std::map<uint32_t, std::string> dead;
  for (const auto& [rank, local] : locals_) {
    if (local.join.gone && !local.left && local.gone.empty()) {
      if (const std::string why = local.join.gone(); !why.empty()) {
        dead.emplace(rank, why);
      }
    }
  }
  for (const auto& [rank, why] : dead) {
    trainer_gone(rank, why);
  }
}

void Member::trainer_gone(uint32_t rank, const std::string& why, uint64_t session) {
  const auto found = locals_.find(rank);
  if (over() || found == locals_.end() || found->second.left || !found->second.gone.empty() ||
      (session != 0 && session != found->second.join.session)) {
    return;
  }
  if (found->second.sent) {
    send({{"type", "rank_gone"}, {"rank", rank}, {"why", why}});
  }
  found->second.gone = why;
  found->second.reply = nullptr;
  if (forming()) {
    locals_.erase(found);
    if (locals_.empty()) {
      finish(Status(Code::kAborted, "no rank is left on this node"));
    }
    return;
  }
  if (state_ != State::kFailing) {
    state_ = State::kFailing;
    const Status cause = rank_gone_status(rank, node_.self.name, why);
    failing_timer_.start(node_.peer_timeout, [this, cause] { finish(cause); });
  }
}

void Member::engine_failed(const Status& cause) {
  if (state_ == State::kStarting || state_ == State::kRunning) {
    report(cause);
  }
}

void Member::engine_stalled(const engine::Stall& stall) {
  if (over()) {
    return;
  }
  StallReport report;
  report.bucket = stall.bucket;
  report.sequence = stall.sequence;
  report.name = stall.bucket_name;
  report.waited_ms = stall.waited_ns / 1'000'000;
  report.deadline = stall.deadline;
  report.phase = engine::describe(stall.view, node_names());
  send(stall_document(report));
}

void Member::engine_moved_on(uint32_t bucket, uint64_t sequence) {
  if (!over() && stalls_.erase({bucket, sequence}) != 0) {
    send({{"type", "moved_on"}, {"bucket", bucket}, {"sequence", sequence}});
  }
}

// Nobody to compare with: the engine keeps none.
void Member::engine_completed(const Results& results) {
  if (state_ == State::kRunning && !results.empty()) {
    send(results_document(results));
  }
}

// The coordinator decides on the cause that everybody hears; a silent one is not waited for.
void Member::report(const Status& cause) {
  if (over()) {
    return;
  }
  if (forming() || !link_) {
    finish(cause);
    return;
  }
  if (state_ != State::kFailing) {
    state_ = State::kFailing;
    send(failure_document("failed", cause));
    failing_timer_.start(node_.peer_timeout, [this, cause] { finish(cause); });
  }
}

void Member::stop(const Status& cause) {
  if (!over()) {
    send(failure_document("stopping", cause));
    finish(cause);
  }
}

void Member::ended() {
  for (auto& [rank, local] : locals_) {
    local.left = true;
  }
  finish(ok_status());
}

// After abort_job, when nothing completes any more.
void Member::remember_past(bool in_order) {
  if (!node_.pasts || !went_) {
    return;
  }
  if (in_order) {
    node_.pasts->forget(identity_);
    return;
  }
  node_.pasts->expect(identity_);
  node_.engine.completed(job_,
                         [weak = std::weak_ptr(node_.pasts), identity = identity_, epoch = epoch_->counter,
                          names = buckets_->names()](const std::vector<engine::BucketSequence>& all) {
                           const auto pasts = weak.lock();
                           if (!pasts) {
                             return;
                           }
                           std::map<uint32_t, uint64_t> completed;
                           for (const engine::BucketSequence& each : all) {
                             completed[each.bucket] = each.sequence;
                           }
                           std::map<std::string, uint64_t> by_name;  // of several the latest
                           for (const auto& [id, name] : names) {
                             const auto found = completed.find(id);
                             by_name[name] = found == completed.end() ? 0 : found->second;
                           }
                           Past past;
                           past.epoch = epoch;
                           for (const auto& [name, sequence] : by_name) {
                             past.buckets.push_back({name, sequence, sequence, -1});
                           }
                           pasts->remember(identity, std::move(past));
                         });
}

LocalJoin Member::renewed(Local& local) const {
  const Nanoseconds now = node_.scheduler.now();
  const auto to_ms = [](Nanoseconds time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  LocalJoin join = std::move(local.join);
  join.timeout_ms = static_cast<uint64_t>(std::max<int64_t>(1, to_ms(local.deadline - now)));
  join.age_ms += join.age_ms == 0 ? 0 : static_cast<uint64_t>(to_ms(now - local.since));
  return join;
}

void Member::finish(const Status& cause, bool again) {
  if (over()) {
    return;
  }
  const auto self = shared_from_this();
  const bool in_engine = buckets_ != nullptr;
  ended_ = cause.ok();
  ended_at_ = node_.scheduler.now();
  state_ = State::kOver;
  cause_ = cause.ok() ? Status(Code::kAborted, describe(identity_) + " has ended") : cause;
  join_timer_.stop();
  retry_timer_.stop();
  failing_timer_.stop();
  if (link_) {
    link_->close();
  }
  node_.scheduler.post([liveness = std::shared_ptr<Liveness>(std::move(liveness_))] {});  // it may be running
  if (in_engine) {
    if (!cause.ok()) {
      log_warning(again ? "job_forms_again" : "job_over",
                  {{"job", identity_.name}, {"run", identity_.run_id}, {"cause", cause.message()}});
      node_.engine.abort_job(job_, cause_);
    }
    remember_past(cause.ok());
    if (!again) {
      hooks_.job_ends(*this);
    }
    node_.engine.remove_job(job_);
    buckets_->over(cause_, cause.ok());
  }
  job_charge_.reset();
  std::vector<Reply<Joined>> unjoined;
  std::vector<std::pair<LocalJoin, Reply<Joined>>> renewed_joins;
  std::vector<Answer> joined;
  for (auto& [rank, local] : locals_) {
    local.session.reset();
    if (local.reply && again) {
      const auto reply = std::exchange(local.reply, nullptr);
      renewed_joins.emplace_back(renewed(local), reply);
    } else if (local.reply) {
      unjoined.push_back(std::exchange(local.reply, nullptr));
    } else if (!local.left && local.gone.empty() && local.join.aborted) {
      joined.push_back(local.join.aborted);
    }
  }
  for (const auto& reply : unjoined) {
    reply(cause_);
  }
  for (const auto& aborted : joined) {
    aborted(cause_);
  }
  hooks_.over(*this);
  for (auto& [join, reply] : renewed_joins) {
    hooks_.again(std::move(join), reply);
  }
}

}  // namespace gradwire::control
