// Coordinator: all jobs whose rendezvous is this daemon. Greets members, finds the job that a document
// belongs to, watches the links.
//
// A state machine without I/O on one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "daemon/control/coordinated_job.h"
#include "daemon/control/liveness.h"

namespace gradwire::control {

inline constexpr Nanoseconds kHelloTimeout = std::chrono::seconds(5);

class Coordinator {
 public:
  Coordinator(Scheduler& scheduler, CoordinatorOptions options);
  ~Coordinator();

  // A member's link, before its hello.
  void accept(LinkPtr link);
  // Ends the jobs that are forming with this cause, and refuses ranks that join from now on.
  void drain(const Status& cause);
  // A connection that never became a link; `cause` names the source. Those who wait for ranks in vain hear of
  // it.
  void connection_refused(const std::string& source, const std::string& cause);
  // Of buckets that are created from now on, in running jobs too.
  void set_policy(Json policy) { options_.policy = std::move(policy); }
  // Of all buckets.
  void set_plan(config::PlanOptions plan);
  // Ends all jobs with this cause.
  void stop(const Status& cause);

  size_t members() const { return members_.size(); }
  size_t jobs() const;  // forming or running
  // The last sign of life of a member of that job; 0: none is known.
  Nanoseconds last_heard(const JobIdentity& identity, const std::string& instance) const;

 private:
  struct Member {
    Member(Scheduler& scheduler, LinkPtr its_link) : link(std::move(its_link)), hello_deadline(scheduler) {}
    LinkPtr link;
    NodeInfo info;
    JobIdentity identity;
    std::shared_ptr<CoordinatedJob> job;  // nullptr before hello
    std::unique_ptr<Liveness> liveness;
    Timer hello_deadline;
  };
  struct Identity {
    uint64_t last_epoch = 0;  // that ran; 0 after an orderly end
    std::shared_ptr<CoordinatedJob> forming;
    std::vector<std::shared_ptr<CoordinatedJob>> running;
    // Ranks that come a moment after the others failed to agree hear the same cause, once.
    std::shared_ptr<CoordinatedJob> failed;
    std::set<uint32_t> told;
    Status failure;
    Nanoseconds failed_at{};
  };
  struct Refusal {
    std::string source, cause;
    Nanoseconds when{};
  };

  void received(NodeKey key, const Json& document);
  Status greet(NodeKey key, Member& member, const Json& document);
  Status join(NodeKey key, Member& member, const Json& document);
  bool is_straggler(const Identity& identity, const RankJoin& join) const;
  std::string refusals(Nanoseconds since) const;
  void closed(NodeKey key, const Status& why);
  void drop(NodeKey key);  // closes the link
  std::shared_ptr<CoordinatedJob> forming_job(const JobIdentity& identity);
  void job_over(CoordinatedJob& job, const Status& cause);

  Scheduler& scheduler_;
  CoordinatorOptions options_;
  Status refusal_;  // ok: ranks are welcome
  NodeKey last_key_ = 0;
  std::map<NodeKey, std::unique_ptr<Member>> members_;
  std::map<JobIdentity, Identity> identities_;
  std::deque<Refusal> refusals_;                                // the latest, one a source
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for work that is posted
};

}  // namespace gradwire::control
