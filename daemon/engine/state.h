// The state of the engine's objects: operations, buckets, ranks, links, jobs. Plain members; the rules are in
// core.h and the files that implement it.
#pragma once

#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/layout/ring.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/flat_map.h"
#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/message.h"
#include "daemon/engine/result_samples.h"
#include "daemon/engine/send_buffer.h"
#include "daemon/engine/small_messages.h"
#include "daemon/engine/snapshot.h"
#include "daemon/engine/task.h"

namespace gradwire::engine {

// Buckets that other nodes already use and this one does not know yet, per job.
inline constexpr uint32_t kMaxAnnouncedBuckets = 1024;

struct Job;
struct Link;

// A data message that has arrived; valid while the coroutine that takes it runs.
struct Arrival {
  const MessageHeader* header = nullptr;
  std::span<const std::byte> payload;
};

enum class OperationState : uint8_t {
  kIdle,
  kRunning,
  kDone  // completed for the ranks; its last sends are still under way
};

struct Operation {
  explicit Operation(Bucket* bucket) : room_hook(bucket), retire_hook(bucket) {}

  OperationState state = OperationState::kIdle;
  uint64_t sequence = 0;  // of the operation in flight or the last one
  Signature signature;
  MessageHeader header{};    // what all its messages have in common
  bool begun = false;        // reducer: begin() without commit() or abandon()
  bool receives = false;     // expects messages
  bool needs_grant = false;  // those that it sends to will say that they have started; nothing is sent before
  uint32_t grants_left = 0;  // of them have not said so
  bool not_finite = false;
  uint64_t first_ns = 0;       // first local submit
  uint64_t start_ns = 0;       // all local ranks submitted
  uint32_t first_hop = 0;      // of messages that arrive; collectives.h, awaited_hop(), says which is next
  uint32_t end_hop = 0;        // one beyond the last; the same as first_hop where nothing arrives
  uint64_t arrivals_left = 0;  // messages that the relay still waits for
  uint32_t pending_sends = 0;  // queued, waiting for the grant, or with the transport; grants included
  uint32_t parts = 0;          // coroutines that have not finished
  uint32_t burst = 0;          // segments injected since the injecting coroutine last waited
  // The one that must come next, by what place_of() says of a message.
  std::vector<uint32_t> next_segment;
  List<SendBuffer> ungranted;
  uint32_t ungranted_count = 0;
  std::coroutine_handle<> receiver;  // waits for an arrival
  std::coroutine_handle<> injector;  // waits for room on `way`
  Link* way = nullptr;               // what the injector fills
  Arrival arrival;
  Hook<Bucket> room_hook;    // in Link::waiters or Job::yielded, if the injector waits
  Hook<Bucket> retire_hook;  // done, and its sends too
  Task inject, relay;
};

// Local submissions for the next operation.
struct Gather {
  uint64_t sequence = 0;
  uint32_t count = 0;  // ranks that have submitted; 0: none
  uint64_t first_ns = 0;
  uint32_t first_rank = 0;  // whose signature it is
  Signature signature;
};

struct RankSlot {
  uint64_t last = 0;  // sequence number of the rank's last submission
  uint64_t user_data = 0;
  bool pending = false;  // submitted, not completed
};

// A message of a small operation that this node has not started.
struct EarlyMessage {
  explicit EarlyMessage() : hook(this) {}
  MessageHeader header{};
  Hook<EarlyMessage> hook;
  std::byte payload[kSmallMessageBytes];
};

// "I have started (bucket, sequence)" from a node that this one sends to, until this one starts it too.
struct StoredGrant {
  uint32_t from = 0;
  uint64_t sequence = 0;
  Signature signature;
};

class GrantSend final : public transport::SendCompletion {
 public:
  explicit GrantSend(Core& core, Bucket* bucket, uint32_t to) : core_(core), bucket_(bucket), to_(to) {}
  void on_sent(const Status& status) override;

 private:
  Core& core_;
  Bucket* bucket_;
  uint32_t to_;
};

// What the owner of a chunk knows of the shares that come straight to it. They are summed by their senders'
// distance to the left, whatever order they come in, so that runs are replayable.
struct DirectState {
  std::vector<uint8_t> granted;     // by node
  std::vector<uint32_t> summed;     // by segment of the own chunk: shares
  std::vector<uint8_t> not_finite;  // the same
  std::vector<SendBuffer*> held;    // by segment and distance: too early to be summed; null: none
};

// The engine's own buckets, in which it measures the network: of nothing, and of kProbeElements. Trainers do
// not reach them, and no counter or view shows them.
inline constexpr uint32_t kFirstProbeBucket = UINT32_MAX - 1;

// A change of plan holds the bucket's operations back.
struct Hold {
  uint64_t from = 0;      // the first that must not begin
  Engine::Idle idle;      // called before `from`; empty: it was, or nobody has said what comes
  bool changing = false;  // idle was called: the reducer may change
};

// Before add_bucket it may exist as an announcement only: other nodes are ahead (spec.reducer is null).
struct Bucket {
  Bucket(Job* owner, uint32_t number)
      : job(owner), id(number), operation(this), warning_hook(this), deadline_hook(this) {}

  Job* const job;
  const uint32_t id;
  const bool own = id >= kFirstProbeBucket;
  BucketSpec spec;
  std::shared_ptr<const std::string> shown_name;  // for snapshots
  uint8_t dtype = 0;
  uint32_t dtype_bytes = 1;
  uint64_t layout = 0;
  bool small = false;
  uint64_t shard_layout = 0;  // the same of spec.shards
  bool small_shards = false;
  bool removed = false;  // freed when its last send is out
  std::vector<RankSlot> ranks;
  Gather gather;
  Operation operation;
  std::unique_ptr<DirectState> direct;  // null: allreduces go around the ring
  std::vector<StoredGrant> grants;      // each node's ascending; a root may be ahead by up to P broadcasts
  std::deque<GrantSend> grant_sends;    // by node
  List<EarlyMessage> early;
  uint32_t early_count = 0;
  uint64_t last_allowed = UINT64_MAX;  // sequence number after which a rank that left will be missing
  uint32_t left_rank = 0;              // that rank
  BucketCounters counters;
  std::unique_ptr<Hold> hold;
  uint64_t clock_ns = 0;                     // first submit of the operation that the clocks run for
  bool warned = false;                       // on_stall was called for it
  Hook<Bucket> warning_hook, deadline_hook;  // in Core's lists while the clocks run
};

struct RankState {
  LocalRank spec;
  layout::RingConsumer<layout::Submission> submissions;
  layout::RingProducer<layout::Completion> completions;
  bool left = false;
  bool broken = false;  // its rings made no sense: never touched again
  uint64_t submitted = 0, late_count = 0, late_total_ns = 0, late_max_ns = 0;
};

// The way to another node of a job.
struct Link {
  Link(Job* owner, uint32_t to) : job(owner), node(to), ready_hook(this) {}
  Job* const job;
  const uint32_t node;
  transport::PeerId peer = 0;
  bool connected = false;
  uint32_t in_flight = 0;
  List<SendBuffer> queue;
  List<Bucket> waiters;   // operations whose injector waits for room
  Hook<Link> ready_hook;  // in Core's list of links that have something to do
};

// Measurements that are under way.
struct Probe {
  Engine::Probed done;
  uint32_t left = 0;  // operations of the bucket in question that have not ended
  uint64_t since_ns = 0, since_cpu_ns = 0;
  ProbeTimes times;
};

struct Job {
  explicit Job(JobSpec s) : spec(std::move(s)) {
    for (uint32_t node = 0; node < spec.nodes; ++node) {
      links.emplace_back(this, node);
    }
  }
  Link& right() { return links[right_node]; }

  JobSpec spec;
  uint32_t left_node = 0, right_node = 0;
  std::vector<RankState> ranks;
  std::deque<Link> links;   // by node; the one to this node itself is not used
  bool any_direct = false;  // some bucket is or was Algorithm::kDirect: all nodes are let in
  bool failed = false;      // operations are frozen
  bool reported = false;    // on_job_failed was called
  bool aborted = false;
  Status cause;
  Status lost;  // another node went away while nothing was in flight
  uint32_t running = 0;
  uint32_t announced = 0;
  bool any_left = false;
  uint32_t left_rank = 0;
  JobTraffic traffic;
  ResultSamples samples;
  std::unique_ptr<Probe> probe;
  std::unique_ptr<float[]> probe_memory;  // gradient and result, of zeros
  bool probe_ready = false;               // its buckets are there
  List<Bucket> yielded;                   // operations whose coroutine has let others go first
  List<Bucket> retired;                   // operations that are over, sends included
  FlatMap<Bucket> buckets;
  std::vector<std::unique_ptr<Bucket>> storage;
};

// For sentences: of a long name only the beginning, which leaves room for the rest.
std::string bucket_label(const std::string& name, uint32_t bucket);

}  // namespace gradwire::engine
