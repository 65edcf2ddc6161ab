// Messages that change on their way, checksum put right: an engine takes them, ends the job
// with a sentence, or says that an operation stalls.
//
// Input: one byte (nodes, operation), then per message a byte: 0 to 127 passes so many messages untouched,
// else what is done to the next one.
#include <algorithm>
#include <cstring>

#include "daemon/engine/message.h"
#include "tests/fuzz/input.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using fuzz::Input;

class Tamper {
 public:
  explicit Tamper(Input& input) : input_(input) {}

  // How many times the message arrives.
  int operator()(transport::SimMessage& message) {
    if (pass_ > 0 || input_.empty()) {
      pass_ -= pass_ > 0 ? 1 : 0;
      return 1;
    }
    const uint8_t what = input_.number();
    if (what < 128) {
      pass_ = what;
      return 1;
    }
    switch (what % 6) {
      case 0:
        return 0;
      case 1:
        return 2;
      case 2:
        replace(message.header);
        sign(message);
        break;
      case 3:
        replace(message.payload);
        break;
      case 4:
        message.payload.resize(std::min<size_t>(input_.number<uint16_t>(), 70'000));
        sign(message);
        break;
      default:
        message.header.resize(input_.number() % 129);
    }
    return 1;
  }

 private:
  void replace(std::vector<std::byte>& bytes) {
    if (bytes.empty()) {
      return;
    }
    const size_t at = input_.number<uint16_t>() % bytes.size();
    const auto part = input_.take(std::min<size_t>(input_.number() % 32, bytes.size() - at));
    std::memcpy(bytes.data() + at, part.data(), part.size());
  }
  static void sign(transport::SimMessage& message) {
    engine::MessageHeader header;
    if (message.header.size() == sizeof header) {
      std::memcpy(&header, message.header.data(), sizeof header);
      header.payload_bytes = static_cast<uint32_t>(message.payload.size());
      header.checksum = engine::message_checksum(header);
      std::memcpy(message.header.data(), &header, sizeof header);
    }
  }

  Input& input_;
  uint32_t pass_ = 0;
};

void add_buckets(Cluster& cluster) {
  BucketShape small;
  small.name = "small";
  small.layers = {300};
  cluster.add_bucket(1, small);
  BucketShape large;
  large.name = "large";
  large.layers = {50'000};  // several messages a hop
  cluster.add_bucket(2, large);
  BucketShape compressed;
  compressed.name = "compressed";
  compressed.layers = {2500, 5};
  compressed.codec = "laco";
  cluster.add_bucket(3, compressed);
  compressed.name = "direct";
  compressed.algorithm = engine::Algorithm::kDirect;
  cluster.add_bucket(4, compressed);
  large.name = "direct and large";
  large.layers = {120'000};
  large.codec = "none";
  large.algorithm = engine::Algorithm::kDirect;
  cluster.add_bucket(5, large);
}

constexpr uint32_t kBuckets = 5;  // and the barrier's, 0

}  // namespace
}  // namespace gradwire::sim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::sim;  // NOLINT(google-build-using-namespace)
  gradwire::fuzz::Input input(data, size);
  const uint8_t shape = input.number();
  ClusterOptions options;
  options.nodes = 2 + shape % 3;
  options.network.max_payload = 70'000;
  options.expect_equal_results = false;  // a payload that was changed shows in one node's result
  Cluster cluster(options);
  add_buckets(cluster);
  Tamper tamper(input);
  cluster.network().set_filter([&](gradwire::transport::SimMessage& message) { return tamper(message); });
  const uint8_t operations[] = {gradwire::layout::kOpAllreduce, gradwire::layout::kOpAllgather,
                                gradwire::layout::kOpBroadcast, gradwire::layout::kOpReduceScatter};
  for (uint32_t step = 0; step < 2; ++step) {
    Request request;
    request.operation = operations[shape / 3 % 4];
    cluster.submit_all(1, request);
    for (uint32_t bucket = 2; bucket <= kBuckets; ++bucket) {
      cluster.submit_all(bucket, Request{});
    }
    cluster.submit_all(0, Request{gradwire::layout::kOpBarrier});
    const bool done = cluster.run_until(
        [&] {
          bool all = true;
          for (uint32_t bucket = 0; bucket <= kBuckets; ++bucket) {
            all = all && cluster.completed(bucket);
          }
          return all;
        },
        10'000'000'000);
    bool stalled = false;
    for (uint32_t n = 0; n < cluster.nodes(); ++n) {
      stalled = stalled || !cluster.node(n).stalls.empty();
    }
    gradwire::fuzz::require(done || !cluster.failure().ok() || stalled,
                            "what does not complete has a cause, or is known to stall");
    if (!done) {
      break;
    }
  }
  return 0;
}
