// Core: the engine's inside. engine.h is its contract; state.h its data.
//
// Who calls whom: poll() reads the ranks' rings (submissions.cc) and starts operations (operations.cc), whose
// coroutines (collectives.cc, direct.cc, distribution.cc) send (sends.cc) and wait; the transport's
// on_message (arrivals.cc) resumes the one that waits for the message, inside the call. Nothing that a
// coroutine calls destroys or restarts an operation: what is finished is retired by poll(). A failure freezes
// its job at once and is reported to the listener by poll().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/snapshot.h"
#include "daemon/engine/state.h"

namespace gradwire::engine {

class Core final : public transport::Receiver {
 public:
  Core(Clock& clock, transport::Transport& transport, Listener& listener, const EngineOptions& options);
  ~Core();

  // jobs.cc, ending.cc, leaving.cc: Engine's calls of the same names.
  Status add_job(JobSpec spec);
  Status add_bucket(BucketSpec spec);
  Status remove_bucket(JobId id, uint32_t bucket);
  Result<std::vector<BucketSequence>> leave_rank(JobId id, uint32_t rank);
  void note_rank_left(JobId id, uint32_t rank, std::span<const BucketSequence> last);
  void abort_job(JobId id, const Status& cause);
  void remove_job(JobId id);

  // poll.cc
  size_t poll();
  size_t poll_rings();
  bool prepare_sleep();
  void wake();
  uint64_t next_deadline_ns() const;
  bool busy() const { return running_ != 0; }

  // inspect.cc
  OperationView inspect(JobId id, uint32_t bucket, uint64_t sequence) const;
  std::vector<BucketSequence> completed(JobId id) const;
  Status look(JobId id, uint32_t bucket, const Engine::Look& look) const;
  // probes.cc, plans.cc: Engine's calls of the same names.
  Status probe(JobId id, Engine::Probed done);
  Result<uint64_t> hold_bucket(JobId id, uint32_t bucket);
  Status let_begin(JobId id, uint32_t bucket, uint64_t from, Engine::Idle idle);
  Status change_bucket(JobId id, uint32_t bucket, BucketChange* change);
  void go_on(JobId id, uint32_t bucket);
  JobSnapshot snapshot(JobId id) const;
  JobTraffic traffic(JobId id) const;
  std::vector<ResultSample> take_results(JobId id);
  std::vector<OperationId> in_flight() const;
  std::vector<JobId> jobs() const;
  EngineCounters counters() const { return counters_; }
  std::vector<int> bell_fds() const;
  uint64_t jobs_version() const { return jobs_version_; }

  // arrivals.cc
  void on_message(std::span<const std::byte> header, std::span<const std::byte> payload) override;
  void on_peer_error(transport::PeerId peer, const Status& status) override;

  // For the coroutines (sends.cc, operations.cc). acquire() fails the job and returns nullptr when memory ran
  // out: the coroutine ends there, without end_part().
  SendBuffer* acquire(Bucket& bucket);
  void release(SendBuffer* buffer) { pool_.release(buffer); }
  // What acquire() counts for those that need no buffer: a segment is as much work where it stays here.
  void count_segment() { ++segments_; }
  struct Outgoing {
    MessageKind kind = MessageKind::kReduce;
    uint32_t hop = 0, chunk = 0, segment = 0;
    uint32_t bytes = 0;      // in the buffer
    uint64_t raw_bytes = 0;  // what the same elements take uncompressed
    bool not_finite = false;
    Link* way = nullptr;  // null: to the right
  };
  void send(Bucket& bucket, SendBuffer* buffer, const Outgoing& what);
  bool has_room(const Bucket& bucket) const;
  void wait_for_room(Bucket& bucket, std::coroutine_handle<> waiter);
  void yield(Bucket& bucket, std::coroutine_handle<> waiter);
  void end_part(Bucket& bucket);
  void fail_operation(Bucket& bucket, const Status& cause);
  uint32_t broadcast_bytes() const { return broadcast_bytes_; }
  FramePool& frames() { return frames_; }
  uint64_t now_ns() const { return clock_.now_ns(); }

  // For SendBuffer and GrantSend.
  void data_sent(SendBuffer& buffer, const Status& status);
  void grant_sent(Bucket& bucket, uint32_t to, const Status& status);

 private:
  // jobs.cc
  Job* find(JobId id) const;
  Bucket* find(JobId id, uint32_t bucket) const;
  Job* find_key(const EpochKey& key) const;
  Bucket* make_bucket(Job& job, uint32_t id);
  void free_bucket(Bucket& bucket);
  Status check(const Job& job, const BucketSpec& spec) const;
  Status take_bucket(BucketSpec& spec);
  static void hand_back(BucketSpec& spec);  // ending.cc

  // links.cc
  Status admit(std::span<const std::string> hosts);
  Status admit_members();
  Status admit_all(Job& job);
  static std::vector<uint32_t> heard(const Job& job);
  Status connect(Job& job, bool direct);
  void disconnect(Job& job);

  // How much of one job is done before the others get their turn: steps, and segments that these encode.
  struct Turn {
    size_t steps = 0;
    uint64_t segments_end = 0;  // of segments_
  };

  // submissions.cc
  size_t poll_rank(Job& job, uint32_t local, const Turn& turn);
  void submit(Job& job, uint32_t local, const layout::Submission& submission);
  Status check(const Job& job, uint32_t local, const layout::Submission& submission, Bucket** bucket) const;
  void refuse(Job& job, uint32_t local, const layout::Submission& submission);
  void push_completion(RankState& rank, const layout::Completion& completion);
  static void wake_rank(RankState& rank);

  // probes.cc
  Status add_probe_buckets(Job& job);
  void submit_probe(Bucket& bucket);
  void probe_ended(Bucket& bucket);
  void go_on_probing(Bucket& bucket);

  // plans.cc
  Result<Bucket*> find_held(JobId id, uint32_t bucket) const;
  void begin_if_ready(Bucket& bucket);
  void set_reducer(Bucket& bucket, bool direct);

  // operations.cc
  void start(Bucket& bucket);
  void take_early(Bucket& bucket);
  void expect_arrivals(Bucket& bucket);
  void launch(Bucket& bucket);
  void complete(Bucket& bucket);
  static void sample_result(Bucket& bucket, uint32_t flags);
  void cancel(Bucket& bucket);
  void retire(Bucket& bucket);
  void retire_if_over(Bucket& bucket);
  void complete_ranks(Bucket& bucket, uint64_t sequence, int32_t status, uint32_t flags);
  void drop_early(Bucket& bucket);

  // grants.cc
  void expect_grants(Bucket& bucket);
  bool take_stored_grants(Bucket& bucket);
  bool take_stored_grant(Bucket& bucket, uint32_t from);
  void send_grants(Bucket& bucket);
  void open_for_sending(Bucket& bucket, uint32_t node);
  void on_grant(Bucket& bucket, const MessageHeader& header);

  // arrivals.cc
  void on_data(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload);
  std::string objection(const Bucket& bucket, const MessageHeader& header, size_t bytes) const;
  void deliver(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload);
  void keep_early(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload);

  // sends.cc
  void post(Link& link, SendBuffer* buffer);
  void transmit(Link& link, SendBuffer* buffer);
  size_t pump(Link& link);
  static void count_sent(Bucket& bucket, uint64_t raw_bytes, uint64_t payload_bytes);
  void sent_one(Bucket& bucket);
  void drop_sends(List<SendBuffer>& list);

  // poll.cc, leaving.cc
  Turn turn(size_t steps) const;
  bool may_go_on(const Turn& turn, size_t steps) const;
  size_t run_job(Job& job);
  size_t check_clocks(uint64_t now);
  void report_failures();
  void start_clocks(Bucket& bucket, uint64_t now);
  void stop_clocks(Bucket& bucket);
  Stall stall_of(const Bucket& bucket, uint64_t now, bool deadline) const;  // inspect.cc
  bool check_left(Bucket& bucket);
  void fail(Job& job, Status cause);
  void lose(Job& job, uint32_t node, const Status& why);

  Clock& clock_;
  transport::Transport& transport_;
  Listener& listener_;
  const EngineOptions options_;
  const uint32_t window_;
  const uint32_t broadcast_bytes_;

  FramePool frames_;
  BufferPool pool_;
  std::vector<std::unique_ptr<EarlyMessage>> early_storage_;
  List<EarlyMessage> early_free_;
  std::vector<std::unique_ptr<Job>> jobs_;
  FlatMap<Job> by_key_;  // first 8 bytes of the key
  uint64_t jobs_version_ = 0;
  uint32_t running_ = 0;   // operations in flight, all jobs
  uint64_t segments_ = 0;  // ever handled: a measure of the work done
  bool failures_ = false;
  uint64_t heartbeat_ns_ = 0;
  EngineCounters counters_;

  List<Link> ready_links_;
  std::vector<std::string> admitted_;  // hosts, as the transport was told last, ascending
  List<Bucket> warnings_, deadlines_;  // oldest first_ns first: both time-outs are constants
};

// Two nodes are a ring either way.
inline bool is_direct(const Job& job, const BucketSpec& spec) {
  return spec.algorithm == Algorithm::kDirect && job.spec.nodes > 2;
}
// Under what the job's key is found in Core's map.
uint64_t epoch_hash(const EpochKey& key);
// "node 3 (host7)" or "node 3".
std::string node_label(const Job& job, uint32_t node);
// 'bucket "conv1" (4), operation 17'
std::string operation_label(const Bucket& bucket, uint64_t sequence);

struct Engine::Impl {
  Impl(Clock& clock, transport::Transport& transport, Listener& listener, const EngineOptions& options)
      : core(clock, transport, listener, options) {}
  Core core;
};

}  // namespace gradwire::engine
