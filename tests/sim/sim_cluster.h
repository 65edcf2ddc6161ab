// P engines with L local ranks each on a simulated network, in one thread and in virtual time. The cluster
// plays the control plane (it adds jobs and buckets everywhere, and ends jobs that fail) and the trainers (it
// owns the client ends of the rings and the bucket memory).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/layout/ring.h"
#include "compress/reducer.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/snapshot.h"
#include "transport/sim/sim_network.h"

namespace gradwire::sim {

struct ClusterOptions {
  uint32_t nodes = 2;
  uint32_t local_ranks = 1;
  std::vector<uint32_t> rank_node;  // another placement than blocks of local_ranks
  transport::SimOptions network;
  engine::EngineOptions engine;
  bool abort_on_failure = true;      // as the control plane would: everywhere, with the first cause
  bool expect_equal_results = true;  // on all nodes, as far as the engines' samples tell
};

struct BucketShape {
  std::string name;
  std::vector<uint64_t> layers;
  compress::Dtype dtype = compress::Dtype::kFloat32;
  std::string codec;                                       // empty: the exact reducer
  compress::CodecSettings settings;                        // its codec is replaced by `codec`
  engine::Algorithm algorithm = engine::Algorithm::kRing;  // kDirect: not of the exact reducer
  uint32_t shard_message_bytes = 0;  // 0: the transport's; the shards' segments are cut by it
  // A node's reducer, before its engine gets it.
  std::function<std::unique_ptr<compress::BucketReducer>(uint32_t node,
                                                         std::unique_ptr<compress::BucketReducer>)>
      wrap;
};

struct Request {
  uint8_t operation = layout::kOpAllreduce;
  compress::ReduceOp reduce_op = compress::ReduceOp::kSum;
  double scale = 1.0;
  uint32_t root = 0;
  uint8_t flags = 0;  // layout::kSubmission...
};

// Memory of one bucket at one rank or node: unaligned sizes stand at the end of their allocation, so that the
// address sanitizer sees the first byte too many.
class Region {
 public:
  explicit Region(size_t bytes) : bytes_(bytes), memory_(std::make_unique<std::byte[]>(bytes)) {}
  std::byte* data() { return memory_.get(); }
  size_t size() const { return bytes_; }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(memory_.get()), bytes_ / sizeof(T)};
  }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

// The client's side of one rank.
struct Rank {
  uint32_t rank = 0;
  uint32_t node = 0;
  std::shared_ptr<std::byte> memory;  // the session
  layout::SessionHeader* session = nullptr;
  layout::RingProducer<layout::Submission> submissions;
  layout::RingConsumer<layout::Completion> completions;
  std::map<uint32_t, std::shared_ptr<Region>> gradients;  // by bucket
  std::map<uint32_t, uint64_t> sequences;
  std::vector<layout::Completion> done;  // everything popped so far
  // The latest completion of the bucket's latest operation; nullptr while it is in flight.
  const layout::Completion* completion(uint32_t bucket) const;
  void open();  // a session of its own
  void collect();
};

inline constexpr engine::JobId kClusterJob = 1;

struct Node final : engine::Listener {
  std::string name;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<engine::Engine> engine;
  std::map<uint32_t, std::shared_ptr<Region>> results;
  std::map<uint32_t, compress::BucketReducer*> reducers;
  std::map<uint32_t, std::unique_ptr<compress::BucketReducer>> retired;  // handed back by the engine
  std::vector<Status> failures;
  std::map<engine::JobId, std::vector<Status>> other_failures;  // of jobs that are not the cluster's
  std::vector<engine::Stall> stalls;
  uint32_t progress_after_stall = 0;

  void on_job_failed(engine::JobId job, const Status& cause) override {
    (job == kClusterJob ? failures : other_failures[job]).push_back(cause);
  }
  void on_stall(const engine::Stall& stall) override { stalls.push_back(stall); }
  void on_progress_after_stall(engine::JobId, uint32_t, uint64_t) override { ++progress_after_stall; }
};

class Cluster final : public engine::Clock {
 public:
  static constexpr engine::JobId kJob = kClusterJob;

  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  uint64_t now_ns() const override { return network_.now_ns(); }

  transport::SimNetwork& network() { return network_; }
  uint32_t world() const {
    return options_.rank_node.empty() ? options_.nodes * options_.local_ranks
                                      : static_cast<uint32_t>(options_.rank_node.size());
  }
  Node& node(uint32_t index) { return *nodes_[index]; }
  Rank& rank(uint32_t index) { return ranks_[index]; }
  uint32_t nodes() const { return options_.nodes; }

  void add_bucket(uint32_t bucket, const BucketShape& shape);
  void add_bucket_at(uint32_t node, uint32_t bucket, const BucketShape& shape);

  // The chunks of the ranks' shards, for make_shard_reducer.
  std::vector<uint32_t> rank_chunks() const;

  // As a trainer: the next sequence number of the bucket.
  void submit(uint32_t rank, uint32_t bucket, const Request& request = {});
  void submit_all(uint32_t bucket, const Request& request = {});
  void submit_raw(uint32_t rank, const layout::Submission& submission);
  layout::Submission submission(uint32_t rank, uint32_t bucket, const Request& request);

  // Moves time on until `done` holds, nothing more can happen, or `limit_ns` has passed. True if `done`.
  bool run_until(const std::function<bool()>& done, uint64_t limit_ns = 1'000'000'000'000);
  // Until every rank's latest operation of the bucket has completed with success.
  bool finish(uint32_t bucket);
  bool completed(uint32_t bucket);  // on every rank, with any status
  void settle();                    // until nothing is left to do; stops at the next timer of an engine
  // Destroys the node's engine and transport, as a death of its daemon does.
  void kill(uint32_t node);
  // The cause of the first failure that any listener was told of; ok if none.
  Status failure() const { return failure_; }
  const std::vector<std::byte>& key() const { return key_; }
  // Results that were compared with another node's, and the operations in which they differed.
  size_t compared_results() const { return compared_; }
  const std::set<std::pair<uint32_t, uint64_t>>& differing_results() const { return differing_; }

 private:
  bool round();  // one poll of every engine; true if anything happened
  void collect();
  void compare_results();

  ClusterOptions options_;
  transport::SimNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Rank> ranks_;
  std::vector<std::byte> key_;
  Status failure_;
  uint64_t user_data_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> result_hashes_;  // by bucket and sequence number
  size_t compared_ = 0;
  std::set<std::pair<uint32_t, uint64_t>> differing_;
};

inline constexpr uint64_t kSecond = 1'000'000'000;  // ns

// So much time, whatever happens.
inline void pass(Cluster& cluster, uint64_t ns) {
  cluster.run_until([] { return false; }, ns);
}
// Gradients of small integers, whose sums are exact.
void fill_integers(Cluster& cluster, uint32_t bucket, uint32_t step);
// What a node says of an operation of bucket 1.
std::string sentence(Cluster& cluster, uint32_t node, uint64_t sequence = 1);
// All engines measure the network: their answers.
std::vector<engine::ProbeTimes> probe(Cluster& cluster);

// Nodes that send large buckets in several messages.
inline ClusterOptions cluster_of(uint32_t nodes, uint32_t locals) {
  ClusterOptions options;
  options.nodes = nodes;
  options.local_ranks = locals;
  options.network.max_payload = 70'000;
  return options;
}

// The same, with messages that come at all sorts of times.
inline ClusterOptions jittery_cluster_of(uint32_t nodes, uint32_t locals, uint64_t seed) {
  ClusterOptions options = cluster_of(nodes, locals);
  options.network.seed = seed;
  options.network.jitter_ns = 50'000;
  return options;
}

inline BucketShape bucket_of(uint64_t elements, const char* codec = "") {
  BucketShape shape;
  shape.name = "gradients";
  shape.layers = {elements};
  shape.codec = codec;
  return shape;
}

// At their density from the first operation on.
inline compress::CodecSettings settled(double density = 0.02) {
  compress::CodecSettings settings;
  settings.density = density;
  settings.warm_start_steps = 0;
  return settings;
}

inline BucketShape settled_bucket(const char* codec, std::vector<uint64_t> layers) {
  BucketShape shape;
  shape.name = codec;
  shape.layers = std::move(layers);
  shape.codec = codec;
  shape.settings = settled();
  return shape;
}

}  // namespace gradwire::sim
