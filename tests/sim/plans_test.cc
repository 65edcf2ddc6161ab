// Buckets that get another reducer or algorithm while they are in use, and the engines' own measurements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::HasSubstr;

constexpr uint64_t kElements = 120'000;

std::unique_ptr<compress::BucketReducer> reducer(uint32_t node, uint32_t nodes, const std::string& codec,
                                                 engine::Algorithm algorithm) {
  compress::BucketShape shape;
  shape.layers = {{"layer0", kElements}};
  shape.nodes = nodes;
  shape.node = node;
  shape.max_message_bytes = 70'000;
  shape.direct = algorithm == engine::Algorithm::kDirect;
  compress::CodecSettings settings;
  settings.codec = codec;
  settings.density = 0.02;
  settings.warm_start_steps = 0;
  auto made = compress::make_compressor(shape, {&settings, 1});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

BucketShape sparse() {
  BucketShape shape = bucket_of(kElements, "lads");
  shape.settings.density = 0.02;
  shape.settings.warm_start_steps = 0;
  return shape;
}

void run(Cluster& cluster, uint32_t step) {
  fill_integers(cluster, 1, step);
  cluster.submit_all(1);
  ASSERT_TRUE(cluster.finish(1)) << cluster.failure().message();
  cluster.settle();
}

// The first or the second rank of every node.
void submit_of_every_two(Cluster& cluster, uint32_t which, const Request& request = {}) {
  for (uint32_t rank = which; rank < cluster.world(); rank += 2) {
    cluster.submit(rank, 1, request);
  }
}

// What the control plane does, on every node at once.
class Change {
 public:
  Change(Cluster& cluster, std::string codec, engine::Algorithm algorithm)
      : cluster_(cluster), codec_(std::move(codec)), algorithm_(algorithm), idle_(cluster.nodes()) {}

  uint64_t hold() {
    uint64_t first = 0;
    for (uint32_t n = 0; n < cluster_.nodes(); ++n) {
      const Result<uint64_t> held = cluster_.node(n).engine->hold_bucket(Cluster::kJob, 1);
      EXPECT_TRUE(held.ok()) << held.status().message();
      first = std::max(first, *held);
    }
    return first;
  }
  void let_begin(uint64_t from) {
    for (uint32_t n = 0; n < cluster_.nodes(); ++n) {
      const Status let = cluster_.node(n).engine->let_begin(
          Cluster::kJob, 1, from, [this, n](compress::BucketReducer& old) { idle_[n] = old.take_state(); });
      EXPECT_TRUE(let.ok()) << let.message();
    }
  }
  bool all_idle() const {
    return std::all_of(idle_.begin(), idle_.end(), [](const auto& state) { return state.has_value(); });
  }
  // The layers that went on with what they had, on the last node.
  size_t swap() {
    size_t restored = 0;
    for (uint32_t n = 0; n < cluster_.nodes(); ++n) {
      engine::BucketChange next;
      next.reducer = reducer(n, cluster_.nodes(), codec_, algorithm_);
      next.algorithm = algorithm_;
      restored = next.reducer->restore_state(*idle_[n]);
      compress::BucketReducer* const raw = next.reducer.get();
      const Status changed = cluster_.node(n).engine->change_bucket(Cluster::kJob, 1, &next);
      EXPECT_TRUE(changed.ok()) << changed.message();
      cluster_.node(n).reducers[1] = raw;
    }
    return restored;
  }
  void go_on() {
    for (uint32_t n = 0; n < cluster_.nodes(); ++n) {
      cluster_.node(n).engine->go_on(Cluster::kJob, 1);
    }
  }

 private:
  Cluster& cluster_;
  std::string codec_;
  engine::Algorithm algorithm_;
  std::vector<std::optional<std::vector<compress::LayerState>>> idle_;
};

TEST(Plans, ABucketThatGoesOnExactlySendsWhatItHeldBack) {
  for (const uint32_t nodes : {1u, 2u, 4u}) {
    Cluster cluster(cluster_of(nodes, 2));
    cluster.add_bucket(1, sparse());
    run(cluster, 1);
    run(cluster, 2);
    std::vector<double> owed(kElements);
    for (uint32_t n = 0; n < nodes; ++n) {
      const auto residual = cluster.node(n).reducers[1]->residual();
      std::transform(residual.begin(), residual.end(), owed.begin(), owed.begin(), std::plus<>());
    }
    EXPECT_GT(cluster.node(0).reducers[1]->stats().residual_norm, 0);
    Change change(cluster, "none", engine::Algorithm::kRing);
    change.let_begin(change.hold());
    ASSERT_TRUE(change.all_idle());
    for (uint32_t step = 3; step <= 4; ++step) {
      fill_integers(cluster, 1, step);
      if (step == 3) {  // submitted under the old plan, begun under the new one
        submit_of_every_two(cluster, 0);
        pass(cluster, kSecond);
        EXPECT_EQ(change.swap(), 1u);
        submit_of_every_two(cluster, 1);
        EXPECT_FALSE(cluster.run_until([&] { return cluster.completed(1); }, 1'000'000'000));
        change.go_on();
      } else {
        cluster.submit_all(1);
      }
      ASSERT_TRUE(cluster.finish(1)) << cluster.failure().message();
      cluster.settle();
      std::vector<double> sum = step == 3 ? owed : std::vector<double>(kElements);
      for (uint32_t i = 0; i < cluster.world(); ++i) {
        const auto gradient = cluster.rank(i).gradients[1]->as<float>();
        std::transform(gradient.begin(), gradient.end(), sum.begin(), sum.begin(), std::plus<>());
      }
      const auto result = cluster.node(nodes - 1).results[1]->as<float>();
      for (uint64_t e = 0; e < kElements; ++e) {
        ASSERT_NEAR(result[e], sum[e], 1e-5 * (1 + std::abs(sum[e]))) << "step " << step << ", " << e;
      }
    }
  }
}

TEST(Plans, WhatSomeRanksHaveSubmittedBeginsUnderTheNewPlan) {
  constexpr uint32_t kNodes = 3;
  for (const uint8_t operation :
       {layout::kOpAllreduce, layout::kOpBroadcast, layout::kOpReduceScatter, layout::kOpAllgather}) {
    Cluster cluster(cluster_of(kNodes, 2));
    cluster.add_bucket(1, sparse());
    run(cluster, 1);
    Change change(cluster, "none", engine::Algorithm::kDirect);
    change.let_begin(change.hold());
    Request request;
    request.operation = operation;
    request.root = operation == layout::kOpBroadcast ? 3 : 0;
    submit_of_every_two(cluster, 0, request);
    pass(cluster, kSecond);
    change.swap();
    submit_of_every_two(cluster, 1, request);
    pass(cluster, kSecond);
    change.go_on();
    ASSERT_TRUE(cluster.finish(1)) << int{operation} << ": " << cluster.failure().message();
    cluster.settle();
    if (operation == layout::kOpBroadcast) {
      const auto root = cluster.rank(3).gradients[1]->as<float>();
      const auto result = cluster.node(0).results[1]->as<float>();
      EXPECT_TRUE(std::equal(root.begin(), root.end(), result.begin(), result.end()));
    }
    run(cluster, 2);
  }
}

TEST(Plans, ResidualsGoOnUnderAnotherCodecAndAlgorithm) {
  Cluster cluster(cluster_of(3, 1));
  cluster.add_bucket(1, sparse());
  for (uint32_t step = 1; step <= 3; ++step) {
    run(cluster, step);
  }
  std::vector<double> before;
  for (uint32_t n = 0; n < 3; ++n) {
    before.push_back(cluster.node(n).reducers[1]->stats().residual_norm);
  }
  Change change(cluster, "laco", engine::Algorithm::kDirect);
  change.let_begin(change.hold());
  ASSERT_TRUE(change.all_idle()) << "nothing is in flight";
  EXPECT_EQ(change.swap(), 1u);
  for (uint32_t n = 0; n < 3; ++n) {
    EXPECT_DOUBLE_EQ(cluster.node(n).reducers[1]->stats().residual_norm, before[n]);
  }
  change.go_on();
  for (uint32_t step = 4; step <= 6; ++step) {
    run(cluster, step);
  }
  EXPECT_TRUE(cluster.differing_results().empty());
}

TEST(Plans, NodesThatAreBehindCatchUpFirst) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse());
  run(cluster, 1);
  // Node 0 has begun operation 2, node 1 has not.
  fill_integers(cluster, 1, 2);
  cluster.submit(0, 1);
  cluster.settle();
  Change change(cluster, "none", engine::Algorithm::kRing);
  EXPECT_EQ(*cluster.node(0).engine->hold_bucket(Cluster::kJob, 1), 3u);
  EXPECT_EQ(*cluster.node(1).engine->hold_bucket(Cluster::kJob, 1), 2u);
  cluster.submit(1, 1);
  EXPECT_FALSE(cluster.run_until([&] { return cluster.completed(1); }, 1'000'000'000)) << "it is held";
  change.let_begin(3);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  ASSERT_TRUE(change.all_idle());
  change.swap();
  change.go_on();
  run(cluster, 3);
}

TEST(Plans, AHoldThatIsGivenUpChangesNothing) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse());
  run(cluster, 1);
  Change change(cluster, "none", engine::Algorithm::kRing);
  change.hold();
  fill_integers(cluster, 1, 2);
  cluster.submit_all(1);
  EXPECT_FALSE(cluster.run_until([&] { return cluster.completed(1); }, 6 * kSecond));
  EXPECT_EQ(sentence(cluster, 0, 2), "waiting for a change of plan");
  EXPECT_EQ(sentence(cluster, 0, 1), "idle");
  const engine::BucketSnapshot seen = cluster.node(0).engine->snapshot(Cluster::kJob).buckets[1];
  EXPECT_EQ(seen.phase, layout::BucketPhase::kHeld);
  EXPECT_EQ(seen.sequence, 2u);
  ASSERT_EQ(cluster.node(1).stalls.size(), 1u);
  EXPECT_EQ(cluster.node(1).stalls[0].view.phase, layout::BucketPhase::kHeld);
  change.go_on();
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  EXPECT_EQ(cluster.node(0).reducers[1]->codec_name(), "lads");
}

TEST(Plans, OrdersThatMakeNoSenseAreRefused) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse());
  run(cluster, 1);
  engine::Engine& engine = *cluster.node(0).engine;
  const auto nothing = [](compress::BucketReducer&) {};
  EXPECT_EQ(engine.hold_bucket(Cluster::kJob, 0).status().code(), Code::kNotFound);
  EXPECT_EQ(engine.hold_bucket(Cluster::kJob, 2).status().code(), Code::kNotFound);
  EXPECT_EQ(engine.hold_bucket(99, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(engine.let_begin(Cluster::kJob, 1, 5, nothing).code(), Code::kNotFound);
  ASSERT_TRUE(engine.hold_bucket(Cluster::kJob, 1).ok());
  EXPECT_EQ(engine.hold_bucket(Cluster::kJob, 1).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(engine.let_begin(Cluster::kJob, 1, 1, nothing).code(), Code::kInvalidArgument);
  engine::BucketChange next;
  next.reducer = reducer(0, 2, "none", engine::Algorithm::kRing);
  EXPECT_EQ(engine.change_bucket(Cluster::kJob, 1, &next).code(), Code::kUnavailable);
  ASSERT_TRUE(engine.let_begin(Cluster::kJob, 1, 2, nothing).ok());
  EXPECT_EQ(engine.let_begin(Cluster::kJob, 1, 3, nothing).code(), Code::kInvalidArgument);
  engine.go_on(Cluster::kJob, 1);  // its reducer may be empty: not with that one
  const auto look = [](const compress::BucketReducer&) { return ok_status(); };
  EXPECT_EQ(engine.look(Cluster::kJob, 1, look).code(), Code::kAborted);
  engine::BucketChange other;
  EXPECT_EQ(engine.change_bucket(Cluster::kJob, 1, &other).code(), Code::kUnavailable);
  other.reducer = reducer(0, 3, "none", engine::Algorithm::kRing);
  const Status wrong = engine.change_bucket(Cluster::kJob, 1, &other);
  EXPECT_THAT(wrong.message(), HasSubstr("not cut for the ring's 2 nodes"));
  EXPECT_EQ(other.reducer->geometry().chunks(), 3u) << "it is given back";
  ASSERT_TRUE(engine.change_bucket(Cluster::kJob, 1, &next).ok());
  EXPECT_EQ(next.reducer->codec_name(), "lads");
  EXPECT_TRUE(engine.look(Cluster::kJob, 1, look).ok());
  engine.go_on(Cluster::kJob, 1);
  engine.go_on(Cluster::kJob, 1);
}

TEST(Plans, AnEndMeanwhileLeavesTheReducerThatIsThere) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, sparse());
  run(cluster, 1);
  Change change(cluster, "none", engine::Algorithm::kRing);
  change.let_begin(change.hold() + 1);
  for (uint32_t n = 0; n < 2; ++n) {
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "over"));
    cluster.node(n).engine->remove_job(Cluster::kJob);
    ASSERT_TRUE(cluster.node(n).retired[1]);
    EXPECT_EQ(cluster.node(n).retired[1]->codec_name(), "lads");
  }
  EXPECT_FALSE(change.all_idle());
}

TEST(Probes, TellTheNetworksLatencyAndRate) {
  for (const uint32_t nodes : {2u, 4u}) {
    ClusterOptions options = cluster_of(nodes, 2);
    options.network.latency_ns = 50'000;
    options.network.bytes_per_second = 125'000'000;
    Cluster cluster(options);
    const double bytes = 2.0 * (nodes - 1) / nodes * 4 * engine::kProbeElements;
    for (int round = 0; round < 2; ++round) {
      for (const engine::ProbeTimes& times : probe(cluster)) {
        EXPECT_NEAR(static_cast<double>(times.empty_ns), 2.0 * (nodes - 1) * 51'000, 20'000);
        EXPECT_NEAR(static_cast<double>(times.full_ns), bytes * 8, bytes * 8 * 0.15);
      }
    }
  }
}

TEST(Probes, AreSeenByNobodyElse) {
  Cluster cluster(cluster_of(2, 1));
  cluster.add_bucket(1, bucket_of(1000));
  cluster.submit_all(1);
  probe(cluster);
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  engine::Engine& engine = *cluster.node(0).engine;
  EXPECT_EQ(engine.snapshot(Cluster::kJob).buckets.size(), 2u) << "the barrier's and the job's";
  EXPECT_EQ(engine.snapshot(Cluster::kJob).operations, 1u);
  EXPECT_EQ(engine.traffic(Cluster::kJob).payload_bytes,
            engine.snapshot(Cluster::kJob).buckets[1].payload_bytes);
  EXPECT_EQ(engine.traffic(Cluster::kJob).header_bytes,
            engine.snapshot(Cluster::kJob).buckets[1].header_bytes);
  EXPECT_EQ(engine.completed(Cluster::kJob).size(), 1u);
  EXPECT_TRUE(engine.in_flight().empty());
  const auto left = engine.leave_rank(Cluster::kJob, 0);
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left->size(), 2u);
}

TEST(Probes, ATrainerDoesNotReachThem) {
  Cluster cluster(cluster_of(2, 1));
  probe(cluster);
  layout::Submission submission = cluster.submission(0, 1, {});
  submission.bucket = UINT32_MAX;
  cluster.submit_raw(0, submission);
  EXPECT_TRUE(cluster.run_until([&] { return !cluster.failure().ok(); }));
  EXPECT_THAT(cluster.failure().message(), HasSubstr("there is no bucket 4294967295"));
}

TEST(Probes, OneAtATime) {
  Cluster cluster(cluster_of(2, 1));
  engine::Engine& engine = *cluster.node(0).engine;
  ASSERT_TRUE(engine.probe(Cluster::kJob, [](const engine::ProbeTimes&) {}).ok());
  EXPECT_EQ(engine.probe(Cluster::kJob, [](const engine::ProbeTimes&) {}).code(), Code::kUnavailable);
  EXPECT_EQ(engine.probe(99, [](const engine::ProbeTimes&) {}).code(), Code::kUnavailable);
}

TEST(Probes, EndWithTheJob) {
  Cluster cluster(cluster_of(2, 1));
  bool told = false;
  ASSERT_TRUE(
      cluster.node(0).engine->probe(Cluster::kJob, [&told](const engine::ProbeTimes&) { told = true; }).ok());
  cluster.settle();
  for (uint32_t n = 0; n < 2; ++n) {
    cluster.node(n).engine->abort_job(Cluster::kJob, Status(Code::kAborted, "over"));
    cluster.node(n).engine->remove_job(Cluster::kJob);
  }
  cluster.settle();
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace gradwire::sim
