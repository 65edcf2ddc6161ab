// Member: one job on one node, from the first local rank's join to the epoch's end. Speaks with the job's
// coordinator, which may be this very daemon, and drives the engine.
//
// A state machine without I/O on one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "client/layout/counters_layout.h"
#include "daemon/control/liveness.h"
#include "daemon/control/member_buckets.h"
#include "daemon/control/node_context.h"
#include "daemon/control/state_save.h"
#include "daemon/planner/costs.h"

namespace gradwire::control {

// What `status` shows of a job and the engine does not know.
struct JobFacts {
  engine::JobId id = 0;
  JobIdentity identity;
  uint64_t epoch = 0;
  uint32_t world = 0, nodes = 0, node_index = 0;
  layout::JobState state = layout::JobState::kForming;
  std::string cause;
  uint64_t ended_ns = 0;  // CLOCK_MONOTONIC; 0 while it lives
  std::string stall;      // whom an operation waits for; empty: none stalls
  struct Rank {
    uint32_t rank = 0;
    int32_t pid = 0;
    layout::RankState state = layout::RankState::kAttached;
  };
  std::vector<Rank> ranks;  // local
  struct Peer {
    std::string node;
    std::string instance;
    std::string ranks;
    std::string address;  // control address
    layout::PeerState state = layout::PeerState::kConnecting;
    uint64_t heartbeat_ns = 0;
    uint32_t node_index = 0;
  };
  std::vector<Peer> peers;  // the other nodes
};

class Member : public std::enable_shared_from_this<Member> {
 public:
  struct Hooks {
    std::function<void(Member&)> job_ends;  // the last moment at which the engine knows the job
    std::function<void(Member&)> over;
    // After that: a rank that was waiting goes on waiting in whatever forms next.
    std::function<void(LocalJoin, const Reply<Joined>&)> again;
  };
  Member(NodeContext& node, JobIdentity identity, std::string rendezvous, Hooks hooks);
  ~Member();

  const JobIdentity& identity() const { return identity_; }
  const std::string& rendezvous() const { return rendezvous_; }
  engine::JobId job() const { return job_; }
  bool forming() const { return state_ == State::kConnecting || state_ == State::kForming; }
  bool over() const { return state_ == State::kOver; }
  const Status& cause() const { return cause_; }
  JobFacts facts() const;

  // A local trainer's requests. Replies come later, or inside the call.
  void join(LocalJoin join, Reply<Joined> reply);
  void create_bucket(uint32_t rank, const Manifest& manifest, Reply<BucketCreated> reply);
  void destroy_bucket(uint32_t rank, uint32_t bucket, const Answer& reply);
  void traffic(const Reply<Traffic>& reply);
  // member_state.cc: the compression state of this node. What is loaded replaces what is kept of the job
  // here, once what destroyed buckets left is there.
  Result<StateSave::Source> state_source();
  Status may_load_state() const;
  void before_load(const Answer& ready);
  Status load_state(std::vector<compress::StateSection>&& sections, AdmittedState admitted);
  void leave(uint32_t rank, const Answer& reply);
  // The trainer of a rank that has not left is gone: "died (pid 12)". `session` as in LocalJoin: a newer one
  // of that rank is not meant; 0: whichever is there.
  void trainer_gone(uint32_t rank, const std::string& why, uint64_t session = 0);
  // Finds out whose trainer is gone before the sessions tell.
  void bury_the_dead();
  // The process that has this rank here: attached, in an epoch that is not over. 0 if its number is unknown.
  std::optional<int32_t> holder(uint32_t rank) const;

  // From the engine.
  void engine_failed(const Status& cause);
  void engine_stalled(const engine::Stall& stall);
  void engine_moved_on(uint32_t bucket, uint64_t sequence);
  void engine_completed(const Results& results);
  void engine_coded(const engine::JobSnapshot& job);

  // Ends the epoch for this node, and tells the coordinator: "the daemon on node b is stopping".
  void stop(const Status& cause);

 private:
  enum class State {
    kConnecting,  // to the coordinator
    kForming,     // waits for all ranks
    kStarting,    // the engine has the job
    kRunning,
    kFailing,  // the coordinator has been told, and is waited for
    kOver
  };
  struct Local {
    LocalJoin join;
    Reply<Joined> reply;  // until it has joined or failed
    std::shared_ptr<SessionMemory> session;
    Nanoseconds since{};     // it waits
    Nanoseconds deadline{};  // of its joining
    bool sent = false;       // to the coordinator
    bool left = false;
    std::string gone;  // why; empty: it is there
  };

  void connect();
  void connected(const Result<LinkPtr>& link);
  void received(const Json& document);
  Status handle(const std::string& type, const Json& document);
  Status hello(const Json& document);
  Status refused(const Json& document);
  Status start(const Json& document);
  void started(const Status& status);
  Status go();
  Status who_misses(const Json& document);
  Status measure(const Json& document);
  void probe(uint64_t round, const CostBook::Costs& costs);
  planner::ProbeTimes smoothed(const engine::ProbeTimes& times);
  Status stalled(const Json& document);
  Status moved_on(const Json& document);
  Status rank_left(const Json& document);
  void ended();
  void report(const Status& cause);
  void join_timed_out();
  void refuse_surplus();
  void send_joins();
  void send_past();
  Result<engine::JobSpec> job_spec();
  void remember_past(bool in_order);
  std::vector<std::string> node_names() const;
  Status state_status() const;
  void send(const Json& document);
  std::string coordinator() const;  // "the coordinating daemon, node a (ranks 0,1),"
  // `again`: before `go`; those who wait form anew.
  void finish(const Status& cause, bool again = false);
  // The join, with what is left of its time.
  LocalJoin renewed(Local& local) const;

  NodeContext& node_;
  JobIdentity identity_;
  std::string rendezvous_;
  Hooks hooks_;
  State state_ = State::kConnecting;
  Status cause_;
  bool ended_ = false;  // in an orderly way
  Nanoseconds ended_at_{};
  bool went_ = false;       // trainers have heard that they joined
  bool past_said_ = false;  // to the coordinator, even if there is none
  engine::JobId job_ = 0;
  std::shared_ptr<void> job_charge_;
  LinkPtr link_;
  std::unique_ptr<Liveness> liveness_;
  NodeInfo coordinator_;
  std::string connect_failure_;
  std::map<uint32_t, Local> locals_;
  Nanoseconds join_deadline_{};
  Timer join_timer_;
  Timer retry_timer_;
  Timer failing_timer_;
  std::optional<Epoch> epoch_;
  std::shared_ptr<MemberBuckets> buckets_;
  bool measuring_ = false;
  planner::ProbeTimes probed_;  // this job's probes, smoothed
  double probe_weight_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, std::string> stalls_;  // by bucket and sequence number
};

}  // namespace gradwire::control
