// All jobs that this node takes part in: finds the one that a trainer joins, and the one that the engine
// means.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "daemon/control/member.h"

namespace gradwire::control {

class Members {
 public:
  struct Hooks {
    // Facts of a job whose epoch ends, while the engine still knows it.
    std::function<void(const JobFacts&)> job_ends;
  };
  Members(NodeContext& node, Hooks hooks) : node_(node), hooks_(std::move(hooks)) {}

  // Into the forming epoch of that identity, or a new one: join.placed hears of it, unless the reply says why
  // not.
  void join(const JobIdentity& identity, const std::string& rendezvous, LocalJoin join,
            const Reply<Joined>& reply);

  std::shared_ptr<Member> find(engine::JobId job) const;
  // From now on nobody joins: what is forming ends, later joins get `cause`. Jobs that run go on.
  void drain(const Status& cause);
  void stop(const Status& cause);
  std::vector<JobFacts> facts() const;
  size_t size() const { return members_.size(); }

 private:
  void bury_the_dead(const JobIdentity& identity);

  NodeContext& node_;
  Hooks hooks_;
  Status refusal_;                                            // ok: joins are welcome
  std::map<engine::JobId, std::shared_ptr<Member>> members_;  // not over
};

}  // namespace gradwire::control
