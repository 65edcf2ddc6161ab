// Engine: all operations of all jobs of one node, on one thread.
//
// Everything happens inside poll() and inside the calls below, on the thread that owns the engine; nothing
// here is thread-safe. The engine gets its Clock, Transport and Listener from outside, so the same code runs
// on UCX and on transport/sim with virtual time. In the steady state it allocates nothing.
//
// An operation starts when all local ranks have submitted it; there is no negotiation with other nodes. Any
// number of buckets may be in flight, in any order; one operation a bucket.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/layout/counters_layout.h"
#include "client/layout/session_layout.h"
#include "compress/reducer.h"
#include "config/base/result.h"
#include "transport/transport.h"

namespace gradwire::engine {

class Clock {
 public:
  virtual uint64_t now_ns() const = 0;  // CLOCK_MONOTONIC, or virtual time
  // Processor time of the calling thread; 0: not known. A system call.
  virtual uint64_t cpu_ns() const { return 0; }

 protected:
  ~Clock() = default;
};

using JobId = uint64_t;  // local to the daemon, from 1, never reused
using EpochKey = std::array<std::byte, 16>;

struct EngineOptions {
  uint64_t stall_warning_ns = 5'000'000'000;
  uint64_t operation_timeout_ns = 300'000'000'000;
};

// One local rank: its rings, and the daemon's end of the bell (session_layout.h; -1 in tests that do not
// sleep). `memory` keeps the mapping and the bell alive for as long as the engine may touch them.
struct LocalRank {
  uint32_t rank = 0;
  layout::SessionHeader* session = nullptr;
  int bell_fd = -1;
  std::shared_ptr<void> memory;
};

// A node of a job, as the others know it.
struct JobNode {
  std::string name;                // for messages
  std::string address;             // of its transport
  std::vector<std::string> hosts;  // Transport::hosts(): from where its messages may come
};

struct JobSpec {
  JobId id = 0;
  std::string name;                    // for messages
  EpochKey key{};                      // every data message carries it
  uint32_t nodes = 1;                  // P
  uint32_t node_index = 0;             // ring order
  std::vector<uint32_t> rank_node;     // world entries: rank -> node index
  std::vector<JobNode> members;        // by node index; may be empty if nodes == 1
  std::vector<LocalRank> local_ranks;  // ascending rank
};

// How an allreduce's shares travel.
enum class Algorithm : uint8_t {
  kRing,   // along the ring, each hop adding its own
  kDirect  // straight to the owner of each chunk, and from there to everybody
};

std::string_view algorithm_name(Algorithm algorithm);
// What a bucket's planner expects, for the counters; 0: nobody has measured.
struct PlanFacts {
  std::string text;          // "laco by ring"
  uint64_t expected_ns = 0;  // an allreduce
  uint64_t exact_ns = 0;     // without compression, along the ring
};

struct BucketSpec {
  JobId job = 0;
  uint32_t bucket = 0;  // agreed by all nodes; never 0 (the barrier's)
  std::string name;
  std::unique_ptr<compress::BucketReducer> reducer;
  // Of allreduces; the same on all nodes. kDirect needs a reducer that collects(), but for one or two nodes,
  // where both are the same.
  Algorithm algorithm = Algorithm::kRing;
  // For allgather and reduce_scatter: exact, cut by shards so that chunk (n + 1) mod P holds the shards of
  // node n's ranks. nullptr: the world does not divide the elements.
  std::unique_ptr<compress::BucketReducer> shards;
  // Gets the reducer back when the bucket is gone, with its residuals as the last commit left them. On the
  // engine's thread; may be empty.
  std::function<void(std::unique_ptr<compress::BucketReducer>)> retired;
  std::shared_ptr<const PlanFacts> plan;  // may be null
  uint64_t elements = 0;
  std::vector<const void*> gradients;         // one a local rank, in the order of JobSpec::local_ranks
  void* result = nullptr;                     // one a node
  std::vector<std::shared_ptr<void>> memory;  // keeps the mappings alive
};

// What another plan replaces in a BucketSpec.
struct BucketChange {
  std::unique_ptr<compress::BucketReducer> reducer;  // for the same elements
  Algorithm algorithm = Algorithm::kRing;
  std::function<void(std::unique_ptr<compress::BucketReducer>)> retired;
  std::shared_ptr<const PlanFacts> plan;
};

struct BucketSequence {
  uint32_t bucket = 0;
  uint64_t sequence = 0;
};

// What a job has done on this node, removed buckets included.
struct JobTraffic {
  uint64_t operations = 0;                                      // completed allreduces
  uint64_t raw_bytes = 0, payload_bytes = 0, header_bytes = 0;  // sent
};

// A hash of a sample of what an operation left in this node's result region. It must be the same on all
// nodes.
struct ResultSample {
  uint32_t bucket = 0;
  uint64_t sequence = 0;
  uint64_t hash = 0;
};
inline constexpr size_t kMaxResultSamples = 64;  // that take_results() gives at a time

// What exact allreduces took that the engine did for itself, one after the other: of nothing, and of
// kProbeElements fp32. One operation's, on the average; processor time of the engine's thread, 0 if the clock
// knows none.
inline constexpr uint64_t kProbeElements = uint64_t{1} << 18;
struct ProbeTimes {
  uint64_t empty_ns = 0, empty_cpu_ns = 0;
  uint64_t full_ns = 0, full_cpu_ns = 0;
};

struct OperationId {
  JobId job = 0;
  uint32_t bucket = 0;
  uint64_t sequence = 0;
  auto operator<=>(const OperationId&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// Where an operation is, seen from this node.
struct OperationView {
  layout::BucketPhase phase = layout::BucketPhase::kIdle;
  uint64_t sequence = 0;       // that it is about: in flight, gathering, or the last one
  uint32_t hop = 0, hops = 0;  // the hop whose message must come next, of 2P-2 (P-1 where it only
                               // reduces or only distributes, 2 where shares go straight to their owners)
  // Whose message must come next, or who must start or take this node's; UINT32_MAX: nobody.
  uint32_t waits_for_node = UINT32_MAX;
  std::vector<uint32_t> missing_ranks;  // local ranks that have not submitted it
};
// "gathering", "waiting for node b (index 1) to start", "reducing, hop 2 of 6, waiting for node a (index 0)":
// for sentences, where hops count from 1; node names come from the caller.
std::string describe(const OperationView& view, std::span<const std::string> node_names);

// An operation that makes no progress.
struct Stall {
  JobId job = 0;
  uint32_t bucket = 0;
  std::string bucket_name;
  uint64_t sequence = 0;
  uint64_t waited_ns = 0;  // since the first local submit
  bool deadline = false;   // operation_timeout has passed: the listener must end the job
  OperationView view;      // without missing ranks: it waits for another node
};

// Told on the engine's thread; must not call back into the engine from inside (post instead).
class Listener {
 public:
  // The data path or a local client broke the job. The engine has stopped its operations but not yet
  // completed them: abort_job brings the cause that everybody is to see.
  virtual void on_job_failed(JobId job, const Status& cause) = 0;
  virtual void on_stall(const Stall& stall) = 0;  // at stall_warning, and once more at operation_timeout
  virtual void on_progress_after_stall(JobId job, uint32_t bucket, uint64_t sequence) = 0;

 protected:
  ~Listener() = default;
};

struct JobSnapshot;  // snapshot.h: what the counters page shows
struct EngineCounters;

class Engine {
 public:
  Engine(Clock& clock, transport::Transport& transport, Listener& listener, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Lets the ring's neighbours in; connects to them when the first operation starts, since by then every node
  // has let the others in. Likewise all others with the first bucket that is Algorithm::kDirect. The job's
  // bucket 0 exists from here on. Every node must have added the job before any rank of it submits: messages
  // of a job that is not known are dropped.
  Status add_job(JobSpec spec);
  // Other nodes may use the bucket before this one has added it.
  Status add_bucket(BucketSpec spec);
  // kUnavailable while an operation is in flight. Bucket numbers are not used twice in a job.
  Status remove_bucket(JobId job, uint32_t bucket);

  // A rank of this node leaves in an orderly way. Returns what it submitted last, per bucket, for the others.
  Result<std::vector<BucketSequence>> leave_rank(JobId job, uint32_t rank);
  // A rank (of any node) has left; an operation beyond `last` can never complete: on_job_failed names the
  // rank.
  void note_rank_left(JobId job, uint32_t rank, std::span<const BucketSequence> last);

  // Ends the epoch: every operation in flight, and every later submission, completes with `cause`; residuals
  // and controllers stay as the last commit left them. Idempotent.
  void abort_job(JobId job, const Status& cause);
  // Forgets the job; its sessions' and buckets' memory is released. Ends operations that are still in flight,
  // those of other nodes included if they still wait for something from here: in an orderly end every node's
  // ranks have left first.
  void remove_job(JobId job);

  // Where (bucket, sequence) is; kIdle also if the job or bucket is unknown.
  OperationView inspect(JobId job, uint32_t bucket, uint64_t sequence) const;
  // Sequence numbers of the last completed operation of every bucket that has completed any, also of a job
  // that was aborted; not of buckets that were removed. The barrier's bucket 0 is among them.
  std::vector<BucketSequence> completed(JobId job) const;

  // Shows `look` what reduces the bucket, as the last commit left it. Everybody waits meanwhile: it must take
  // some 0.1 ms at most and come again for more. kUnavailable while an operation is in flight here (one that
  // local ranks still miss is not); kAborted between `idle` and change_bucket (below), which is a moment:
  // come again; otherwise what `look` returns.
  using Look = std::function<Status(const compress::BucketReducer&)>;
  Status look(JobId job, uint32_t bucket, const Look& look) const;

  // One round of work: the sessions' rings, the transport, timers. Returns how much was done.
  size_t poll();
  // The rings alone: cheap, for a loop that spins. Submissions start operations here, too.
  size_t poll_rings();
  bool busy() const;  // operations are in flight: the transport wants to be polled
  // Before sleeping: arms rings and transport; false if there is something to do. After waking call wake().
  bool prepare_sleep();
  void wake();
  // When poll() must be called again at the latest (timers), in the clock's time; UINT64_MAX: never.
  uint64_t next_deadline_ns() const;

  // Measures the job's network and this engine with some 10 operations, which no rank knows of and no counter
  // counts. Every node's engine must be asked the same number of times; `done` is told on the engine's
  // thread, not if the job ends before. kUnavailable: it measures already, or the job is over.
  using Probed = std::function<void(const ProbeTimes&)>;
  Status probe(JobId job, Probed done);

  // A change of a bucket's reducer or algorithm, in three steps that every node takes together. First no
  // operation of it begins any more; returns the number of the first that has not begun here.
  Result<uint64_t> hold_bucket(JobId job, uint32_t bucket);
  // Then those before `from` may begin. When they are over, `idle` is called once, on the engine's thread: it
  // may take the reducer's state, and must be short. kNotFound if the bucket is not held, kInvalidArgument if
  // one from `from` on has begun.
  using Idle = std::function<void(compress::BucketReducer&)>;
  Status let_begin(JobId job, uint32_t bucket, uint64_t from, Idle idle);
  // After `idle`: swaps what the bucket works with. Where it fails, everything is as it was.
  Status change_bucket(JobId job, uint32_t bucket, BucketChange* change);
  // Operations begin again, with whatever reducer there is. Does nothing where the bucket is not held, or
  // `idle` was called and the reducer is still the same.
  void go_on(JobId job, uint32_t bucket);

  // Takes time with the number of buckets, but copies no names.
  JobSnapshot snapshot(JobId job) const;
  JobTraffic traffic(JobId job) const;  // of a job that is not known: nothing
  // Samples of the operations completed since the last call; of more than kMaxResultSamples some, mostly the
  // same ones on all nodes. Not of jobs on one node, nor of barriers, empty buckets and reduce_scatters,
  // whose results are different by intent.
  std::vector<ResultSample> take_results(JobId job);
  // What any local rank has submitted and is not over: also what is complete here, but has messages under way
  // that other nodes wait for. Not of jobs that were aborted. Ascending.
  std::vector<OperationId> in_flight() const;
  std::vector<JobId> jobs() const;
  EngineCounters counters() const;
  // The bells to sleep on besides the transport's descriptor; jobs_version changes whenever they may have
  // changed.
  std::vector<int> bell_fds() const;
  uint64_t jobs_version() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::engine
