// Samples of results: equal on all nodes whatever is computed, and different where a node got something else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using Operation = std::pair<uint32_t, uint64_t>;

constexpr compress::Dtype kDtypes[] = {compress::Dtype::kFloat32,  compress::Dtype::kFloat16,
                                       compress::Dtype::kBfloat16, compress::Dtype::kFloat64,
                                       compress::Dtype::kInt32,    compress::Dtype::kInt64,
                                       compress::Dtype::kUint8};

// Any bits, NaN and Inf among them.
void fill_any(Cluster& cluster, uint32_t bucket, uint32_t seed) {
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    std::minstd_rand random(seed * 100 + i + 1);
    for (std::byte& byte : cluster.rank(i).gradients[bucket]->as<std::byte>()) {
      byte = static_cast<std::byte>(random() >> 8);
    }
  }
}

TEST(Results, AreTheSameOnAllNodesForEveryTypeAndOperation) {
  for (const uint32_t nodes : {2u, 3u}) {
    Cluster cluster(cluster_of(nodes, 2));
    uint32_t buckets = 0;
    for (const compress::Dtype dtype : kDtypes) {
      BucketShape shape = bucket_of(6000);
      shape.dtype = dtype;
      cluster.add_bucket(++buckets, shape);
    }
    size_t expected = 0;
    uint32_t seed = 0;
    const auto run = [&](uint32_t bucket, const Request& request) {
      fill_any(cluster, bucket, ++seed);
      cluster.submit_all(bucket, request);
      ASSERT_TRUE(cluster.finish(bucket));
      cluster.settle();
      expected += request.operation == layout::kOpReduceScatter ? 0 : nodes - 1;
      EXPECT_EQ(cluster.compared_results(), expected);
    };
    for (uint32_t bucket = 1; bucket <= buckets; ++bucket) {
      const bool integer = bucket > 4;
      for (uint8_t op = 0; op <= 4; ++op) {
        Request request;
        request.reduce_op = static_cast<compress::ReduceOp>(op);
        if (op != 1 || !integer) {
          run(bucket, request);
        }
      }
      run(bucket, Request{layout::kOpBroadcast, compress::ReduceOp::kSum, 1.0, 3});
      run(bucket, Request{layout::kOpAllgather});
      run(bucket, Request{layout::kOpReduceScatter});
    }
    cluster.submit_all(0, Request{layout::kOpBarrier});
    ASSERT_TRUE(cluster.finish(0));
    EXPECT_EQ(cluster.compared_results(), expected);
  }
}

// Decodes one bit of one element wrongly, from the third operation on.
class Corrupting final : public compress::BucketReducer {
 public:
  explicit Corrupting(std::unique_ptr<compress::BucketReducer> inner) : inner_(std::move(inner)) {}

  const compress::Geometry& geometry() const override { return inner_->geometry(); }
  compress::Dtype dtype() const override { return inner_->dtype(); }
  std::string_view codec_name() const override { return inner_->codec_name(); }
  uint64_t wire_variant() const override { return inner_->wire_variant(); }
  Status begin(const compress::OperationSettings& settings) override { return inner_->begin(settings); }
  Result<compress::HopOutcome> hop(const compress::Segment& segment, std::span<const std::byte> arrived,
                                   std::span<const void* const> locals, std::byte* out) override {
    return inner_->hop(segment, arrived, locals, out);
  }
  Status decode(const compress::Segment& segment, std::span<const std::byte> bytes, void* result) override {
    Status status = inner_->decode(segment, bytes, result);
    if (operations_ >= 2 && segment.first_element == 0 && segment.elements > 0) {
      static_cast<uint8_t*>(result)[0] ^= 1;
    }
    return status;
  }
  uint32_t finish(const compress::Segment& segment, std::byte* bytes, uint32_t size) override {
    return inner_->finish(segment, bytes, size);
  }
  void poison(void* result, uint64_t first, uint64_t count) const override {
    inner_->poison(result, first, count);
  }
  void commit() override {
    ++operations_;
    inner_->commit();
  }
  void abandon() override { inner_->abandon(); }
  compress::CompressionStats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<compress::BucketReducer> inner_;
  uint64_t operations_ = 0;
};

TEST(Results, OfANodeThatDecodesWronglyAreFound) {
  for (const char* codec : {"", "laco"}) {
    ClusterOptions options = cluster_of(3, 1);
    options.expect_equal_results = false;
    Cluster cluster(options);
    BucketShape shape = bucket_of(1000, codec);
    shape.wrap = [](uint32_t node, std::unique_ptr<compress::BucketReducer> reducer) {
      return node == 1 ? std::make_unique<Corrupting>(std::move(reducer)) : std::move(reducer);
    };
    cluster.add_bucket(4, shape);
    for (int step = 0; step < 3; ++step) {
      cluster.submit_all(4);
      ASSERT_TRUE(cluster.finish(4));
      cluster.settle();
    }
    EXPECT_EQ(cluster.compared_results(), 6u);
    EXPECT_EQ(cluster.differing_results(), (std::set<Operation>{{4, 3}})) << codec;
  }
}

TEST(Results, ADamagedPayloadOnTheLastHopIsFound) {
  ClusterOptions options = cluster_of(3, 1);
  options.expect_equal_results = false;
  Cluster cluster(options);
  cluster.add_bucket(1, bucket_of(900));
  uint32_t messages = 0;
  cluster.network().set_filter([&messages](transport::SimMessage& message) {
    if (++messages == 12) {  // 3 nodes, 4 hops each
      message.payload[5] ^= std::byte{1};
    }
    return 1;
  });
  for (uint32_t i = 0; i < 3; ++i) {
    for (float& value : cluster.rank(i).gradients[1]->as<float>()) {
      value = 1.5F;
    }
  }
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  EXPECT_EQ(messages, 12u);
  EXPECT_EQ(cluster.differing_results(), (std::set<Operation>{{1, 1}}));
}

TEST(Results, ThatNobodyTakesAreBoundedAndTheSameOnesOnAllNodes) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(10));
  const auto poll = [&cluster] {
    do {
      while (cluster.node(0).engine->poll() + cluster.node(1).engine->poll() > 0) {
      }
    } while (cluster.network().step());
  };
  for (int step = 0; step < 200; ++step) {
    cluster.submit_all(1);
    poll();
    for (uint32_t i = 0; i < 2; ++i) {
      cluster.rank(i).collect();
      ASSERT_NE(cluster.rank(i).completion(1), nullptr);
    }
  }
  const auto taken = [&cluster](uint32_t node) {
    std::set<uint64_t> sequences;
    for (const engine::ResultSample& sample : cluster.node(node).engine->take_results(Cluster::kJob)) {
      sequences.insert(sample.sequence);
    }
    return sequences;
  };
  const std::set<uint64_t> first = taken(0);
  EXPECT_EQ(first.size(), engine::kMaxResultSamples);
  EXPECT_EQ(first, taken(1));
  EXPECT_TRUE(cluster.node(0).engine->take_results(77).empty());
}

TEST(Results, OfAJobOnOneNodeAreNotSampled) {
  Cluster cluster(cluster_of(1, 2));
  cluster.add_bucket(1, bucket_of(10));
  cluster.submit_all(1);
  while (cluster.node(0).engine->poll() > 0) {
  }
  EXPECT_TRUE(cluster.node(0).engine->take_results(Cluster::kJob).empty());
  ASSERT_TRUE(cluster.finish(1));
}

}  // namespace
}  // namespace gradwire::sim
