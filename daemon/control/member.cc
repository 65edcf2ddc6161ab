#include "daemon/control/member.h"

#include <algorithm>

#include "daemon/control/log.h"
#include "daemon/control/stall_watch.h"

namespace gradwire::control {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 53;  // of sequence numbers
constexpr Nanoseconds kRetry = std::chrono::milliseconds(250);

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

void Member::join(LocalJoin join, Reply<Joined> reply) {
  if (!forming()) {
    reply(over() ? cause_ : Status(Code::kAborted, describe(identity_) + " has started without this rank"));
    return;
  }
  if (!job_charge_) {
    auto charge = node_.quotas->charge_job(identity_.uid);
    if (!charge.ok()) {
      reply(charge.status());
      finish(charge.status());
      return;
    }
    job_charge_ = *charge;
    connect();
    if (over()) {  // the rendezvous makes no sense
      reply(cause_);
      return;
    }
  }
  if (const auto found = locals_.find(join.rank); found != locals_.end()) {
    reply(Status(Code::kAlreadyExists, "rank " + std::to_string(join.rank) + " of " + describe(identity_) +
                                           " joined on node " + node_.self.name + " (pid " +
                                           std::to_string(join.pid) + ") and is already there (pid " +
                                           std::to_string(found->second.join.pid) + ")"));
    return;
  }
  const Nanoseconds timeout =
      std::min<Nanoseconds>(std::chrono::milliseconds(join.timeout_ms), node_.operation_timeout);
  const Nanoseconds deadline = node_.scheduler.now() + timeout;
  if (!join_timer_.running() || deadline < join_deadline_) {
    join_deadline_ = deadline;
    // A coordinator that answers knows better who is missing: it gets a little more time.
    join_timer_.start(state_ == State::kConnecting ? timeout : timeout + node_.peer_timeout,
                      [this] { join_timed_out(); });
  }
  Local& local = locals_[join.rank];
  local.join = std::move(join);
  local.reply = std::move(reply);
  send_joins();
}

void Member::send_joins() {
  if (state_ != State::kForming) {
    return;
  }
  for (auto& [rank, local] : locals_) {
    if (!local.sent) {
      local.sent = true;
      send(join_document({rank, local.join.world, local.join.pid, local.join.timeout_ms}));
    }
  }
}

void Member::connect() {
  node_.connect(rendezvous_, [weak = weak_from_this()](const Result<LinkPtr>& link) {
    const auto self = weak.lock();
    if (self && !self->over()) {
      self->connected(link);
    } else if (link.ok()) {
      (*link)->close();
    }
  });
}

void Member::connected(const Result<LinkPtr>& link) {
  if (!link.ok()) {
    if (link.status().code() != Code::kUnavailable) {
      finish(link.status());
      return;
    }
    if (connect_failure_.empty()) {
      log_warning("coordinator_unreachable", {{"job", identity_.name}, {"cause", link.status().message()}});
    }
    connect_failure_ = link.status().message();
    retry_timer_.start(kRetry, [this] { connect(); });
    return;
  }
  link_ = *link;
  // The link is closed before this object goes away.
  link_->start([this](const Json& document) { received(document); },
               [this](const Status& why) {
                 finish(Status(state_ == State::kConnecting || state_ == State::kForming ? Code::kUnavailable
                                                                                         : Code::kAborted,
                               coordinator() + " is gone: " + why.message()));
               });
  send(hello_document(node_.self, &identity_));
}

void Member::join_timed_out() {
  const auto self = shared_from_this();
  std::string message = describe(identity_) + " did not form in time: " + coordinator();
  if (state_ == State::kConnecting) {
    message += connect_failure_.empty() ? " does not answer" : " cannot be reached: " + connect_failure_;
  } else {
    message += " gives no answer";
  }
  if (forming()) {
    finish(Status(Code::kDeadlineExceeded, message));
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

void Member::trainer_gone(uint32_t rank, const std::string& why) {
  const auto found = locals_.find(rank);
  if (over() || found == locals_.end() || found->second.left) {
    return;
  }
  if (found->second.sent) {
    send({{"type", "rank_gone"}, {"rank", rank}, {"why", why}});
  }
  found->second.gone = true;
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
    const Status cause(Code::kAborted,
                       "rank " + std::to_string(rank) + " on node " + node_.self.name + " " + why);
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
  send(stall_document(report));
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

void Member::finish(const Status& cause) {
  if (over()) {
    return;
  }
  const auto self = shared_from_this();
  const bool in_engine = buckets_ != nullptr;
  ended_ = cause.ok();
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
      log_warning("job_over",
                  {{"job", identity_.name}, {"run", identity_.run_id}, {"cause", cause.message()}});
      node_.engine.abort_job(job_, cause_);
    }
    hooks_.job_ends(*this);
    node_.engine.remove_job(job_);
    buckets_->over(cause_);
  }
  job_charge_.reset();
  std::vector<Reply<Joined>> unjoined;
  std::vector<Answer> joined;
  for (auto& [rank, local] : locals_) {
    local.session.reset();
    if (local.reply) {
      unjoined.push_back(std::move(local.reply));
      local.reply = nullptr;
    } else if (!local.left && !local.gone && local.join.aborted) {
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
}

}  // namespace gradwire::control
