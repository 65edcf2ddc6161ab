#include "daemon/control/coordinator.h"

#include <algorithm>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

constexpr size_t kRememberedIdentities = 4096;
constexpr size_t kRememberedRefusals = 8;

}  // namespace

Coordinator::Coordinator(Scheduler& scheduler, CoordinatorOptions options)
    : scheduler_(scheduler), options_(std::move(options)) {}

Coordinator::~Coordinator() {
  for (auto& [key, member] : members_) {
    member->link->close();
  }
}

size_t Coordinator::jobs() const {
  size_t count = 0;
  for (const auto& [identity, state] : identities_) {
    count += state.running.size() + (state.forming ? 1 : 0);
  }
  return count;
}

Nanoseconds Coordinator::last_heard(const JobIdentity& identity, const std::string& instance) const {
  Nanoseconds heard{};
  for (const auto& [key, member] : members_) {
    if (member->liveness && member->info.instance == instance && member->identity == identity) {
      heard = std::max(heard, member->liveness->last_heard());
    }
  }
  return heard;
}

void Coordinator::accept(LinkPtr link) {
  const NodeKey key = ++last_key_;
  auto& member = members_[key] = std::make_unique<Member>(scheduler_, std::move(link));
  const LinkPtr opened = member->link;
  member->hello_deadline.start(kHelloTimeout, [this, key] {
    log_warning("peer_refused", {{"peer", members_.at(key)->link->peer()}, {"cause", "no hello within 5s"}});
    drop(key);
  });
  opened->start([this, key](const Json& document) { received(key, document); },
                [this, key](const Status& why) { closed(key, why); });
}

void Coordinator::received(NodeKey key, const Json& document) {
  const auto found = members_.find(key);
  if (found == members_.end()) {
    return;
  }
  Member& member = *found->second;
  Fields fields(document);
  const std::string type = fields.text("type", 1, 64);
  Status status = fields.status();
  if (member.liveness) {
    member.liveness->heard();
  }
  if (status.ok() && type == "beat" && !document.contains("results")) {
    return;
  }
  if (status.ok()) {
    if (!member.job) {
      status = type == "hello" ? greet(key, member, document)
                               : Status(Code::kCorrupt, "the first document is not a hello");
    } else if (type == "join") {
      status = join(key, member, document);
    } else {
      const auto job = member.job;  // the document may end it
      status = job->document(key, type, document);
    }
  }
  if (!status.ok()) {
    log_warning("peer_refused",
                {{"peer", member.link->peer()}, {"node", member.info.name}, {"cause", status.message()}});
    member.link->send(failure_document("error", status));
    closed(key, status);
  }
}

Status Coordinator::greet(NodeKey key, Member& member, const Json& document) {
  Fields fields(document);
  const auto protocol = fields.number<uint32_t>("protocol", 0, UINT32_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("hello"));
  Result<NodeInfo> info = read_hello(document);
  GRADWIRE_RETURN_IF_ERROR(info.status());
  Result<JobIdentity> identity = read_hello_job(document);
  GRADWIRE_RETURN_IF_ERROR(identity.status());
  member.info = std::move(*info);
  member.identity = std::move(*identity);
  GRADWIRE_RETURN_IF_ERROR(check_versions(protocol, member.info, options_.self));
  if (member.info.peer_timeout_ms != options_.self.peer_timeout_ms ||
      member.info.operation_timeout_ms != options_.self.operation_timeout_ms) {
    log_warning("clocks_differ", {{"node", member.info.name},
                                  {"peer_timeout", format_duration_ms(member.info.peer_timeout_ms)},
                                  {"ours", format_duration_ms(options_.self.peer_timeout_ms)}});
  }
  // A daemon has one connection per forming job; an older one is a leftover whose end is still on its way.
  const auto job = forming_job(member.identity);
  for (auto& [other_key, other] : members_) {
    if (other_key != key && other->job == job && other->info.instance == member.info.instance) {
      const NodeKey leftover = other_key;
      closed(leftover, Status(Code::kUnavailable, "replaced by a newer connection"));
      break;
    }
  }
  member.job = forming_job(member.identity);
  member.job->attach(key, member.link, member.info);
  member.hello_deadline.stop();
  member.link->send(hello_document(options_.self, nullptr));
  // The slower of the two clocks decides when a link is silent.
  const Nanoseconds timeout =
      std::max<Nanoseconds>(options_.peer_timeout, std::chrono::milliseconds(member.info.peer_timeout_ms));
  member.liveness = std::make_unique<Liveness>(scheduler_, member.link, timeout,
                                               [this, key](const Status& why) { closed(key, why); });
  return ok_status();
}

Status Coordinator::join(NodeKey key, Member& member, const Json& document) {
  const Result<RankJoin> join = read_join(document);
  GRADWIRE_RETURN_IF_ERROR(join.status());
  const auto refuse = [&](const Status& why) {
    Json answer = failure_document("join_refused", why);
    answer["rank"] = join->rank;
    member.link->send(answer);
    member.job->refused(key, join->rank);
  };
  if (!refusal_.ok()) {
    refuse(refusal_);
    return ok_status();
  }
  Identity& identity = identities_[member.identity];
  const auto all_running = identity.running;  // ending one changes the list
  for (const auto& running : all_running) {
    const auto place = running->place(join->rank);
    if (place && running->is_at(join->rank, member.info.instance)) {
      // That daemon knows whom it serves: the process before is gone, and the word of it is on its way.
      running->lose(rank_gone_status(join->rank, member.info.name,
                                     "has started again (pid " + std::to_string(join->pid) + ")"));
    } else if (place) {
      refuse(Status(Code::kAlreadyExists, "rank " + std::to_string(join->rank) + " of " +
                                              describe(member.identity) + " joined on node " +
                                              member.info.name + " (pid " + std::to_string(join->pid) +
                                              ") and is already in the running epoch on " + *place));
      return ok_status();
    }
  }
  if (is_straggler(identity, *join)) {
    identity.told.insert(join->rank);
    refuse(identity.failure);
    return ok_status();
  }
  if (!member.job->forming()) {
    refuse(too_late_status(join->rank, member.identity));
    return ok_status();
  }
  const auto job = member.job;
  job->join(key, *join);
  return ok_status();
}

// A process that is older than the failure belongs to the launch that failed, unless it has heard of it; a
// younger one belongs to the next launch, which must form.
bool Coordinator::is_straggler(const Identity& identity, const RankJoin& join) const {
  if (!identity.failed || identity.failed->knows(join.rank) || identity.told.contains(join.rank)) {
    return false;
  }
  const Nanoseconds since = scheduler_.now() - identity.failed_at;
  return since < options_.peer_timeout && std::chrono::milliseconds(join.age_ms) > since;
}

void Coordinator::connection_refused(const std::string& source, const std::string& cause) {
  std::erase_if(refusals_, [&source](const Refusal& refusal) { return refusal.source == source; });
  refusals_.push_back({source, cause, scheduler_.now()});
  if (refusals_.size() > kRememberedRefusals) {
    refusals_.pop_front();
  }
}

std::string Coordinator::refusals(Nanoseconds since) const {
  std::string text;
  for (const Refusal& refusal : refusals_) {
    if (refusal.when >= since) {
      text += (text.empty() ? "" : "; ") + refusal.cause;
    }
  }
  return text;
}

std::shared_ptr<CoordinatedJob> Coordinator::forming_job(const JobIdentity& identity) {
  if (identities_.size() > kRememberedIdentities) {
    std::erase_if(identities_, [&identity](const auto& entry) {
      return !entry.second.forming && entry.second.running.empty() && entry.first != identity;
    });
  }
  Identity& state = identities_[identity];
  if (!state.forming) {
    state.forming = std::make_shared<CoordinatedJob>(
        scheduler_, options_, identity,
        CoordinatedJob::Hooks{[this](CoordinatedJob& job) {
                                Identity& its = identities_[job.identity()];
                                its.running.push_back(std::move(its.forming));
                                its.forming = nullptr;
                              },
                              [this](CoordinatedJob& job) {
                                uint64_t& last = identities_[job.identity()].last_epoch;
                                last = std::max(last, job.counter());
                              },
                              [this, identity] { return identities_[identity].last_epoch; },
                              [this](Nanoseconds since) { return refusals(since); },
                              [this](CoordinatedJob& job, const Status& cause) { job_over(job, cause); }});
  }
  return state.forming;
}

void Coordinator::job_over(CoordinatedJob& job, const Status& cause) {
  const auto self = job.shared_from_this();
  Identity& identity = identities_[job.identity()];
  if (identity.forming == self) {
    identity.forming = nullptr;
    if (cause.code() == Code::kMismatch) {
      identity.failed = self;
      identity.told.clear();
      identity.failure = cause;
      identity.failed_at = scheduler_.now();
    }
  }
  std::erase(identity.running, self);
  if (job.ended_in_order() && identity.running.empty()) {
    identity.last_epoch = 0;  // the next run of that name is another one
  }
  // Later, because the job and its members are in use further up the stack.
  scheduler_.post([this, self, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) {
      return;
    }
    std::vector<NodeKey> finished;
    for (const auto& [key, member] : members_) {
      if (member->job == self) {
        finished.push_back(key);
      }
    }
    for (const NodeKey key : finished) {
      drop(key);
    }
  });
}

void Coordinator::closed(NodeKey key, const Status& why) {
  const auto found = members_.find(key);
  if (found == members_.end()) {
    return;
  }
  const auto job = found->second->job;
  if (job) {
    job->lost(key, why);
  }
  drop(key);
}

void Coordinator::drop(NodeKey key) {
  auto entry = members_.extract(key);
  if (!entry.empty()) {
    const std::shared_ptr<Member> member = std::move(entry.mapped());
    member->link->close();
    member->hello_deadline.stop();
    scheduler_.post([member] {});  // it is in use further up the stack
  }
}

void Coordinator::drain(const Status& cause) {
  refusal_ = cause;
  std::vector<std::shared_ptr<CoordinatedJob>> jobs;
  for (const auto& [identity, state] : identities_) {
    if (state.forming) {
      jobs.push_back(state.forming);
    }
  }
  for (const auto& job : jobs) {
    job->abort(cause);
  }
}

void Coordinator::set_plan(config::PlanOptions plan) {
  options_.plan = std::move(plan);
  for (const auto& [name, identity] : identities_) {
    for (const auto& job : identity.running) {
      job->plan_options_changed();
    }
  }
}

void Coordinator::stop(const Status& cause) {
  std::vector<std::shared_ptr<CoordinatedJob>> jobs;
  for (const auto& [identity, state] : identities_) {
    jobs.insert(jobs.end(), state.running.begin(), state.running.end());
    if (state.forming) {
      jobs.push_back(state.forming);
    }
  }
  for (const auto& job : jobs) {
    job->abort(cause);
  }
}

}  // namespace gradwire::control
