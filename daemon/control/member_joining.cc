// From a local rank's join to the coordinator's answer.
#include <algorithm>

#include "daemon/control/log.h"
#include "daemon/control/member.h"

namespace gradwire::control {
namespace {

constexpr Nanoseconds kRetry = std::chrono::milliseconds(250);

}  // namespace

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
  local.since = node_.scheduler.now();
  local.deadline = deadline;
  local.join = std::move(join);
  local.reply = std::move(reply);
  send_joins();
}

// Before the first join; waits for the engine's answer about the epoch before.
void Member::send_past() {
  if (!node_.pasts) {
    past_said_ = true;
    send_joins();
    return;
  }
  node_.pasts->when_known(identity_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->state_ != State::kForming || self->past_said_) {
      return;
    }
    self->past_said_ = true;
    if (const Past* past = self->node_.pasts->find(self->identity_); past != nullptr) {
      self->send(node_past_document(*past));
    }
    self->send_joins();
  });
}

void Member::send_joins() {
  if (state_ != State::kForming) {
    return;
  }
  if (!past_said_) {
    send_past();
    return;  // it comes back here
  }
  for (auto& [rank, local] : locals_) {
    if (!local.sent) {
      local.sent = true;
      send(join_document({rank, local.join.world, local.join.pid, local.join.timeout_ms, local.join.age_ms,
                          local.join.fresh}));
    }
  }
}

void Member::connect() {
  node_.connect(rendezvous_, identity_.uid, [weak = weak_from_this()](const Result<LinkPtr>& link) {
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

Status Member::hello(const Json& document) {
  Fields fields(document);
  const auto protocol = fields.number<uint32_t>("protocol", 0, UINT32_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("hello"));
  Result<NodeInfo> info = read_hello(document);
  GRADWIRE_RETURN_IF_ERROR(info.status());
  coordinator_ = std::move(*info);
  if (const Status versions = check_versions(protocol, coordinator_, node_.self); !versions.ok()) {
    finish(versions);
    return ok_status();
  }
  const Nanoseconds timeout =
      std::max<Nanoseconds>(node_.peer_timeout, std::chrono::milliseconds(coordinator_.peer_timeout_ms));
  liveness_ = std::make_unique<Liveness>(node_.scheduler, link_, timeout, [this](const Status& why) {
    finish(Status(Code::kAborted, coordinator() + " is gone: " + why.message()));
  });
  state_ = State::kForming;
  const Nanoseconds left = join_deadline_ - node_.scheduler.now();
  join_timer_.start(std::max<Nanoseconds>(left, Nanoseconds(0)) + node_.peer_timeout,
                    [this] { join_timed_out(); });
  send_joins();
  return ok_status();
}

Status Member::refused(const Json& document) {
  Fields fields(document);
  const auto rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("join_refused"));
  const auto found = locals_.find(rank);
  if (found == locals_.end() || !found->second.reply || !forming()) {
    return ok_status();
  }
  const auto reply = std::move(found->second.reply);
  locals_.erase(found);
  const Status cause = read_failure(document);
  reply(cause);
  if (locals_.empty()) {
    finish(cause);
  }
  return ok_status();
}

}  // namespace gradwire::control
