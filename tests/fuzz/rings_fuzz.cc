// A trainer that does what it likes with its session's memory, on an engine that a second job uses as well:
// its own job may end, the other one goes on.
//
// Input: one byte (nodes, local ranks), then commands of a byte each with what they need.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/input.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using fuzz::Input;
using fuzz::require;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr size_t kMostCommands = 200;

// A job of one rank on node 0, and what its trainer has of it.
class Neighbour {
 public:
  explicit Neighbour(Cluster& cluster) : cluster_(cluster) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, layout::kSessionBytes)),
                  [](std::byte* freed) { std::free(freed); });
    std::memset(memory_.get(), 0, layout::kSessionBytes);
    auto* const session = reinterpret_cast<layout::SessionHeader*>(memory_.get());
    submissions_ = layout::RingProducer<layout::Submission>(
        &session->submissions,
        reinterpret_cast<layout::Submission*>(memory_.get() + layout::kSubmissionOffset),
        layout::kRingCapacity);
    completions_ = layout::RingConsumer<layout::Completion>(
        &session->completions,
        reinterpret_cast<layout::Completion*>(memory_.get() + layout::kCompletionOffset),
        layout::kRingCapacity);
    engine::JobSpec job;
    job.id = 2;
    job.rank_node = {0};
    engine::LocalRank rank;
    rank.session = session;
    rank.memory = memory_;
    job.local_ranks.push_back(rank);
    require(cluster.node(0).engine->add_job(job).ok(), "a second job is welcome");
  }

  void barrier() {
    layout::Submission barrier{};
    barrier.sequence = ++sequence_;
    barrier.scale = 1;
    barrier.operation = layout::kOpBarrier;
    bool wake = false;
    require(submissions_.push(barrier, &wake) == layout::RingState::kOk, "the other job's ring is in order");
    for (int i = 0; i < 100; ++i) {
      cluster_.node(0).engine->poll();
    }
    layout::Completion completion{};
    require(completions_.pop(&completion) == layout::RingState::kOk && completion.status == 0,
            "the other job goes on");
  }

 private:
  Cluster& cluster_;
  std::shared_ptr<std::byte> memory_;
  layout::RingProducer<layout::Submission> submissions_;
  layout::RingConsumer<layout::Completion> completions_;
  uint64_t sequence_ = 0;
};

struct Attack {
  Cluster& cluster;
  Input& input;

  Rank& any_rank() { return cluster.rank(input.number() % cluster.world()); }

  Request request() {
    Request request;
    request.operation = static_cast<uint8_t>(1 + input.number() % 5);
    request.reduce_op = static_cast<compress::ReduceOp>(input.number() % 5);
    if (request.operation == layout::kOpBroadcast) {
      request.root = input.number() % cluster.world();
    }
    return request;
  }

  // With some of its bytes replaced.
  void submit(bool damaged) {
    Rank& rank = any_rank();
    layout::Submission submission = cluster.submission(rank.rank, input.number() % 5, request());
    if (damaged) {
      const size_t at = input.number() % sizeof submission;
      const auto bytes = input.take(std::min<size_t>(input.number(), sizeof submission - at));
      std::memcpy(reinterpret_cast<uint8_t*>(&submission) + at, bytes.data(), bytes.size());
    }
    bool wake = false;
    rank.submissions.push(submission, &wake);
  }

  void submit_all() {
    const uint32_t bucket = input.number() % 5;
    const Request same = request();
    for (uint32_t r = 0; r < cluster.world(); ++r) {
      bool wake = false;
      cluster.rank(r).submissions.push(cluster.submission(r, bucket, same), &wake);
    }
  }

  void scribble() {
    Rank& rank = any_rank();
    const size_t at = input.number<uint32_t>() % layout::kSessionBytes;
    const auto bytes = input.take(std::min<size_t>(input.number(), layout::kSessionBytes - at));
    std::memcpy(rank.memory.get() + at, bytes.data(), bytes.size());
  }

  void set_counter() {
    layout::SessionHeader& session = *any_rank().session;
    layout::RingControl& ring = input.number() % 2 == 0 ? session.submissions : session.completions;
    std::atomic<uint64_t>& counter = input.number() % 2 == 0 ? ring.tail : ring.head;
    const auto by = input.number<int16_t>();
    counter.store(counter.load(std::memory_order_relaxed) + static_cast<uint64_t>(int64_t{by}),
                  std::memory_order_relaxed);
  }

  void change_gradient() {
    Rank& rank = any_rank();
    const auto region = rank.gradients.find(input.number() % 5);
    if (region == rank.gradients.end()) {
      return;
    }
    const size_t at = input.number<uint16_t>() % region->second->size();
    const auto bytes = input.take(std::min<size_t>(input.number(), region->second->size() - at));
    std::memcpy(region->second->data() + at, bytes.data(), bytes.size());
  }

  void command() {
    switch (input.number() % 8) {
      case 0:
        submit(false);
        break;
      case 1:
        submit(true);
        break;
      case 2:
        submit_all();
        break;
      case 3:
        scribble();
        break;
      case 4:
        set_counter();
        break;
      case 5:
        change_gradient();
        break;
      case 6:
        cluster.settle();
        break;
      default:
        cluster.node(input.number() % cluster.nodes()).engine->poll();
    }
  }
};

void add_buckets(Cluster& cluster) {
  BucketShape exact;
  exact.name = "exact";
  exact.layers = {100};
  cluster.add_bucket(1, exact);
  BucketShape compressed;
  compressed.name = "compressed";
  compressed.layers = {3000, 5, 30000};
  compressed.codec = "laco";
  cluster.add_bucket(2, compressed);
  BucketShape halves;
  halves.name = "halves";
  halves.layers = {40};
  halves.dtype = compress::Dtype::kFloat16;
  cluster.add_bucket(3, halves);
}

}  // namespace
}  // namespace gradwire::sim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::sim;  // NOLINT(google-build-using-namespace)
  gradwire::fuzz::Input input(data, size);
  const uint8_t shape = input.number();
  ClusterOptions options;
  options.nodes = 1 + shape % 2;
  options.local_ranks = 1 + shape / 2 % 2;
  options.network.max_payload = 70'000;
  Cluster cluster(options);
  add_buckets(cluster);
  Neighbour neighbour(cluster);
  Attack attack{cluster, input};
  for (size_t i = 0; i < kMostCommands && !input.empty(); ++i) {
    attack.command();
  }
  cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
  neighbour.barrier();
  return 0;
}
