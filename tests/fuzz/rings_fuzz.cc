// A trainer that does what it likes with its session's memory, on an engine that a second job uses as well:
// its own job may end, the other one goes on.
//
// Input: one byte (nodes, local ranks), then commands of a byte each with what they need.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/input.h"
#include "tests/sim/other_job.h"

namespace gradwire::sim {
namespace {

using fuzz::Input;

constexpr size_t kMostCommands = 200;

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
  OtherJob neighbour(cluster, 2, 1);
  Attack attack{cluster, input};
  for (size_t i = 0; i < kMostCommands && !input.empty(); ++i) {
    attack.command();
  }
  cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
  neighbour.submit_all(0);
  for (int i = 0; i < 100; ++i) {
    cluster.node(0).engine->poll();
  }
  gradwire::fuzz::require(neighbour.complete(0), "the other job goes on");
  return 0;
}
