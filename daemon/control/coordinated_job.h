// One epoch of one job, as its coordinator sees it: gathers the ranks, starts the epoch on all nodes,
// compares buckets, names the culprits, and ends it everywhere with one cause.
//
// A state machine without I/O on one thread. Documents are those of docs/control-protocol.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "config/config.h"
#include "daemon/control/bucket_rounds.h"
#include "daemon/control/documents.h"
#include "daemon/control/link.h"
#include "daemon/control/result_watch.h"
#include "daemon/control/stall_watch.h"

namespace gradwire::control {

class JobPlanner;

struct CoordinatorOptions {
  NodeInfo self;
  Nanoseconds peer_timeout{};
  Nanoseconds operation_timeout{};
  Json policy;                                      // handed out with every bucket
  std::function<std::string(size_t bytes)> random;  // for the epochs' keys
  config::PlanOptions plan{};
  Nanoseconds stall_warning{};  // ranks that a job lacks for so long are told; 0: never
};

using NodeKey = uint64_t;  // a member's connection, never reused

class CoordinatedJob : public std::enable_shared_from_this<CoordinatedJob> {
 public:
  struct Hooks {
    std::function<void(CoordinatedJob&)> formed;   // it takes no more ranks
    std::function<void(CoordinatedJob&)> running;  // every node has it
    std::function<uint64_t()> last_epoch;          // that ran here under this identity; 0: none is known
    std::function<std::string(Nanoseconds since)> refusals;  // of connections, for people; may be empty
    // It has ended; every member has been told. The job may be forgotten.
    std::function<void(CoordinatedJob&, const Status& cause)> over;
  };
  CoordinatedJob(Scheduler& scheduler, const CoordinatorOptions& options, JobIdentity identity, Hooks hooks);

  ~CoordinatedJob();
  CoordinatedJob(const CoordinatedJob&) = delete;
  CoordinatedJob& operator=(const CoordinatedJob&) = delete;

  const JobIdentity& identity() const { return identity_; }
  bool forming() const { return state_ == State::kForming; }

  // While forming.
  void attach(NodeKey key, LinkPtr link, const NodeInfo& info);
  bool knows(uint32_t rank) const { return rank_node_.contains(rank); }
  void join(NodeKey key, const RankJoin& join);
  // Where the rank is, unless it has left or never came.
  std::optional<std::string> place(uint32_t rank) const;
  // Whether it is on that daemon.
  bool is_at(uint32_t rank, const std::string& instance) const;
  uint64_t counter() const { return counter_; }  // 0 while forming
  bool ended_in_order() const { return world_ != 0 && left_.size() == world_; }

  // A document of an attached member, other than hello, join and a beat without results. kCorrupt: odd, the
  // link must end.
  Status document(NodeKey key, const std::string& type, const Json& document);
  void lost(NodeKey key, const Status& why);
  // CoordinatorOptions::plan has.
  void plan_options_changed();
  // Ends it everywhere.
  void abort(const Status& cause) { end(cause, false); }
  // A rank or a node is gone: before `go` the others form anew, afterwards the epoch ends.
  void lose(const Status& cause) { end(cause, state_ == State::kConnecting); }
  // The rank of that node is none of this job.
  void refused(NodeKey key, uint32_t rank);

 private:
  enum class State { kForming, kConnecting, kRunning, kOver };
  struct Rank {
    int32_t pid = 0;
    uint32_t world = 0;
    bool fresh = false;
  };
  struct Node {
    LinkPtr link;
    NodeInfo info;
    uint32_t index = 0;  // in the epoch
    bool ready = false;
    std::map<uint32_t, Rank> ranks;
    std::set<uint32_t> refused;  // and not known to be gone
    std::optional<Past> past;
  };

  std::vector<uint32_t> ranks_of(const Node& node) const;
  std::string place_of(uint32_t rank) const;  // "rank 3 (node b)"
  std::string places(const std::vector<uint32_t>& ranks) const;
  bool owns(NodeKey key, uint32_t rank) const;
  bool fresh() const;
  void end(const Status& cause, bool again);
  void broadcast(const Json& document);
  void expire();
  void tell_missing();
  std::string missing_ranks() const;  // "ranks 1,3 of 4"
  std::string present_ranks() const;  // "node a (rank 0), node b (rank 2)"
  void start_epoch();
  void make_parts();
  std::optional<Past> merged_past() const;
  void verdict(const StallReport& report, const std::string& sentence);
  void node_ready(Node& node);
  Status bucket(NodeKey key, const Json& document);
  Status rank_left(NodeKey key, const Json& document);
  Status rank_gone(NodeKey key, const Json& document);
  Status past(Node& node, const Json& document);
  Status stall(const Json& document);
  Status moved_on(const Json& document);
  Status results(const Node& node, const Json& document);
  void log_results() const;
  std::string node_text(uint32_t index) const;  // "node b (ranks 2,3)"
  void suspect(const Node& node, const Status& cause);
  void rank_withdrawn();  // while forming

  Scheduler& scheduler_;
  const CoordinatorOptions& options_;
  JobIdentity identity_;
  uint64_t counter_ = 0;
  Hooks hooks_;
  State state_ = State::kForming;
  uint32_t world_ = 0;
  std::map<NodeKey, Node> nodes_;
  std::vector<NodeKey> order_;  // index in the epoch -> node
  std::map<uint32_t, NodeKey> rank_node_;
  std::set<uint32_t> left_;
  Nanoseconds join_deadline_{};
  Nanoseconds forming_since_{};
  bool told_missing_ = false;
  Timer deadline_;  // of joining and of connecting
  Timer patience_;  // with ranks that do not join
  Timer grace_;     // a cause from the data path waits for a better one
  std::unique_ptr<BucketRounds> rounds_;
  std::unique_ptr<StallWatch> stalls_;
  std::unique_ptr<JobPlanner> planner_;
  ResultWatch results_;
};

}  // namespace gradwire::control
