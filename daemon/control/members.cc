#include "daemon/control/members.h"

namespace gradwire::control {

std::shared_ptr<Member> Members::join(const JobIdentity& identity, const std::string& rendezvous,
                                      LocalJoin join, const Reply<Joined>& reply) {
  std::shared_ptr<Member> member;
  for (const auto& [job, each] : members_) {
    if (each->forming() && each->identity() == identity) {
      member = each;
    }
  }
  if (member && member->rendezvous() != rendezvous) {
    reply(Status(Code::kMismatch, "the ranks of " + describe(identity) + " on node " + node_.self.name +
                                      " name different rendezvous: '" + member->rendezvous() + "' and '" +
                                      rendezvous + "' (rank " + std::to_string(join.rank) + ")"));
    return nullptr;
  }
  if (!member) {
    member =
        std::make_shared<Member>(node_, identity, rendezvous,
                                 Member::Hooks{[this](Member& ending) { hooks_.job_ends(ending.facts()); },
                                               [this](Member& over) {
                                                 // Later, because it is in use further up the stack.
                                                 node_.scheduler.post([member = over.shared_from_this()] {});
                                                 members_.erase(over.job());
                                               }});
    members_[member->job()] = member;
  }
  member->join(std::move(join), reply);
  return member;
}

std::shared_ptr<Member> Members::find(engine::JobId job) const {
  const auto found = members_.find(job);
  return found == members_.end() ? nullptr : found->second;
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
