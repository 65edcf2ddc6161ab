#include "daemon/control/members.h"

namespace gradwire::control {

void Members::join(const JobIdentity& identity, const std::string& rendezvous, LocalJoin join,
                   const Reply<Joined>& reply) {
  if (!refusal_.ok()) {
    reply(refusal_);
    return;
  }
  bury_the_dead(identity);
  std::shared_ptr<Member> member;
  for (const auto& [job, each] : members_) {
    if (each->identity() != identity) {
      continue;
    }
    if (each->forming()) {
      member = each;
    } else if (const auto pid = each->holder(join.rank)) {
      reply(Status(Code::kAlreadyExists,
                   "rank " + std::to_string(join.rank) + " of " + describe(identity) + " joined on node " +
                       node_.self.name + " (pid " + std::to_string(join.pid) +
                       ") and is already in the running epoch there (pid " + std::to_string(*pid) + ")"));
      return;
    }
  }
  if (member && member->rendezvous() != rendezvous) {
    reply(Status(Code::kMismatch, "the ranks of " + describe(identity) + " on node " + node_.self.name +
                                      " name different rendezvous: '" + member->rendezvous() + "' and '" +
                                      rendezvous + "' (rank " + std::to_string(join.rank) + ")"));
    return;
  }
  if (!member) {
    member = std::make_shared<Member>(
        node_, identity, rendezvous,
        Member::Hooks{[this](Member& ending) { hooks_.job_ends(ending.facts()); },
                      [this](Member& over) {
                        // Later, because it is in use further up the stack.
                        node_.scheduler.post([member = over.shared_from_this()] {});
                        members_.erase(over.job());
                      },
                      [this, identity, rendezvous](LocalJoin again, const Reply<Joined>& its) {
                        this->join(identity, rendezvous, std::move(again), its);
                      }});
    members_[member->job()] = member;
  }
  if (join.placed) {
    join.placed(member);
  }
  member->join(std::move(join), reply);
}

// A relaunched trainer may be here before the end of the one before it was seen.
void Members::bury_the_dead(const JobIdentity& identity) {
  const auto members = members_;  // an end changes the map
  for (const auto& [job, member] : members) {
    if (member->identity() == identity) {
      member->bury_the_dead();
    }
  }
}

std::shared_ptr<Member> Members::find(engine::JobId job) const {
  const auto found = members_.find(job);
  return found == members_.end() ? nullptr : found->second;
}

void Members::drain(const Status& cause) {
  refusal_ = cause;
  const auto members = members_;  // stopping changes the map
  for (const auto& [job, member] : members) {
    if (member->forming()) {
      member->stop(cause);
    }
  }
}

void Members::stop(const Status& cause) {
  const auto members = members_;  // stopping changes the map
  for (const auto& [job, member] : members) {
    member->stop(cause);
  }
}

std::vector<JobFacts> Members::facts() const {
  std::vector<JobFacts> facts;
  for (const auto& [job, member] : members_) {
    facts.push_back(member->facts());
  }
  return facts;
}

}  // namespace gradwire::control
