// What allgather and reduce_scatter refuse, and how they end when something breaks.
#include <gmock/gmock.h>

#include "client/include/gradwire/gradwire.h"
#include "daemon/engine/message.h"
#include "tests/sim/shards_support.h"

namespace gradwire::sim {
namespace {

using compress::Dtype;
using compress::ReduceOp;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

Request shard_request(uint8_t operation) {
  Request request;
  request.operation = operation;
  return request;
}

void expect_ended(Cluster& cluster, uint32_t bucket) {
  ASSERT_TRUE(cluster.run_until([&] { return cluster.completed(bucket); }, 10'000'000'000));
  for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
    const layout::Completion* const completion = cluster.rank(rank).completion(bucket);
    EXPECT_TRUE(completion == nullptr || completion->status == GW_ERR_ABORTED);
  }
}

TEST(ShardsRefused, ABucketThatTheWorldDoesNotDivideSaysWhatToDo) {
  for (const uint8_t operation : {layout::kOpAllgather, layout::kOpReduceScatter}) {
    Cluster cluster(shard_options(2, 2, 1));
    cluster.add_bucket(1, shard_shape(1'001, Dtype::kFloat32));
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
    cluster.submit_all(1, shard_request(operation));
    ASSERT_TRUE(cluster.run_until([&] { return !cluster.failure().ok(); }, 1'000'000));
    EXPECT_THAT(cluster.failure().message(),
                AllOf(HasSubstr("world of 4"), HasSubstr("1001 elements"), HasSubstr("pad its last layer")));
  }
}

TEST(ShardsRefused, NonsenseEndsTheJobOfItsRank) {
  const auto refused = [](auto change) {
    Cluster cluster(shard_options(2, 1, 1));
    cluster.add_bucket(1, shard_shape(1'000, Dtype::kInt32));
    layout::Submission submission = cluster.submission(0, 1, shard_request(layout::kOpAllgather));
    change(submission);
    cluster.submit_raw(0, submission);
    cluster.run_until([&] { return !cluster.failure().ok(); }, 1'000'000);
    return std::string(cluster.failure().message());
  };
  EXPECT_EQ(refused([](layout::Submission&) {}), "");
  EXPECT_THAT(refused([](layout::Submission& s) { s.reduce_op = 2; }), HasSubstr("where nothing is reduced"));
  EXPECT_THAT(refused([](layout::Submission& s) { s.operation = 6; }), HasSubstr("kind 6"));
  EXPECT_THAT(refused([](layout::Submission& s) { s.root = 1; }), HasSubstr("root 1"));
  EXPECT_THAT(refused([](layout::Submission& s) { s.bucket = 0; }), HasSubstr("not meant for this bucket"));
  EXPECT_THAT(refused([](layout::Submission& s) {
                s.operation = layout::kOpReduceScatter;
                s.reduce_op = static_cast<uint8_t>(ReduceOp::kAverage);
              }),
              HasSubstr("the average of int32 is not an integer"));
}

TEST(ShardsRefused, RanksOfOneNodeThatDisagreeAreNamed) {
  Cluster cluster(shard_options(2, 2, 1));
  cluster.add_bucket(1, shard_shape(1'000, Dtype::kFloat32));
  cluster.submit(0, 1, shard_request(layout::kOpAllgather));
  cluster.submit(1, 1);
  cluster.run_until([&] { return !cluster.failure().ok(); }, 1'000'000);
  EXPECT_EQ(cluster.failure().code(), Code::kMismatch);
  EXPECT_THAT(cluster.failure().message(),
              AllOf(HasSubstr("rank 0 on node 0 (node-0) asks for allgather of 1000 float32"),
                    HasSubstr("rank 1 on node 0 (node-0) for allreduce sum of 1000 float32")));
}

// Whatever two nodes mix up, with and without grants, from the first or a later operation on.
TEST(ShardsRefused, NodesThatDisagreeAreNamed) {
  constexpr uint8_t kKinds[] = {layout::kOpAllreduce, layout::kOpBroadcast, layout::kOpAllgather,
                                layout::kOpReduceScatter};
  constexpr const char* kNames[] = {"allreduce sum", "broadcast", "allgather", "reduce_scatter sum"};
  for (const uint64_t elements : {60u, 12'000u, 120'000u}) {
    for (uint32_t nodes = 2; nodes <= 4; ++nodes) {
      for (size_t most = 0; most < std::size(kKinds); ++most) {
        for (size_t odd = 0; odd < std::size(kKinds); ++odd) {
          if (most == odd) {
            continue;
          }
          Cluster cluster(shard_options(nodes, 1, nodes + most * 7 + odd));
          cluster.add_bucket(1, shard_shape(elements, Dtype::kFloat32));
          cluster.submit_all(1);
          ASSERT_TRUE(cluster.finish(1));
          for (uint32_t rank = 0; rank < nodes; ++rank) {
            cluster.submit(rank, 1, shard_request(kKinds[rank == 1 ? odd : most]));
          }
          expect_ended(cluster, 1);
          EXPECT_EQ(cluster.failure().code(), Code::kMismatch) << cluster.failure().message();
          EXPECT_THAT(cluster.failure().message(), AllOf(HasSubstr(kNames[most]), HasSubstr(kNames[odd])))
              << nodes << " nodes, " << elements << " elements";
        }
      }
    }
  }
}

TEST(ShardsRefused, AnotherCutMattersOnlyWhereShardsAreUsed) {
  for (const uint8_t operation : {layout::kOpAllgather, layout::kOpReduceScatter}) {
    ClusterOptions options = shard_options(2, 1, 1);
    options.network.max_payload = 140'000;
    Cluster cluster(options);
    BucketShape shape = shard_shape(100'000, Dtype::kFloat64);
    cluster.add_bucket_at(0, 1, shape);
    shape.shard_message_bytes = 70'000;
    cluster.add_bucket_at(1, 1, shape);
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
    cluster.submit_all(1, shard_request(operation));
    expect_ended(cluster, 1);
    EXPECT_EQ(cluster.failure().code(), Code::kMismatch);
    EXPECT_THAT(cluster.failure().message(), HasSubstr("(layout "));
  }
}

TEST(ShardsRefused, TheEngineTakesNoOtherCut) {
  Cluster cluster(shard_options(2, 2, 1));
  compress::BucketShape cut;
  cut.layers = {{"layer", 400}};
  cut.nodes = 2;
  cut.max_message_bytes = 70'000;
  Region memory(1'600);
  const auto add = [&](const std::vector<uint32_t>& rank_chunk, uint64_t elements, Dtype dtype) {
    engine::BucketSpec spec;
    spec.job = Cluster::kJob;
    spec.bucket = 1;
    spec.name = "odd";
    spec.reducer = compress::make_exact_reducer(cut, Dtype::kFloat32).value();
    compress::BucketShape shards = cut;
    shards.layers[0].elements = elements;
    spec.shards = compress::make_shard_reducer(shards, dtype, rank_chunk).value();
    spec.elements = 400;
    spec.gradients = {memory.data(), memory.data()};
    spec.result = memory.data();
    return cluster.node(0).engine->add_bucket(std::move(spec));
  };
  EXPECT_THAT(add({0, 0, 1, 1}, 400, Dtype::kFloat32).message(), HasSubstr("more than the shards of node"));
  EXPECT_THAT(add({1, 0, 1, 0}, 400, Dtype::kFloat32).message(), HasSubstr("more than the shards of node"));
  EXPECT_THAT(add({1, 1, 0, 0}, 800, Dtype::kFloat32).message(), HasSubstr("more than the shards of node"));
  EXPECT_THAT(add({1, 1, 0, 0}, 400, Dtype::kFloat64).message(), HasSubstr("another type"));
  EXPECT_TRUE(add({1, 1, 0, 0}, 400, Dtype::kFloat32).ok());
}

TEST(ShardsRefused, AShardOfAnotherLengthIsNotTaken) {
  for (const bool longer : {false, true}) {
    Cluster cluster(shard_options(3, 1, 1));
    cluster.add_bucket(1, shard_shape(3'000, Dtype::kFloat32));
    uint32_t count = 0;
    cluster.network().set_filter([&](transport::SimMessage& message) {
      engine::MessageHeader header;
      std::memcpy(&header, message.header.data(), sizeof(header));
      if (header.kind == static_cast<uint8_t>(engine::MessageKind::kGather) && ++count == 3) {
        message.payload.resize(longer ? 4'004 : 3'996);
        header.payload_bytes = static_cast<uint32_t>(message.payload.size());
        header.checksum = engine::message_checksum(header);
        std::memcpy(message.header.data(), &header, sizeof(header));
      }
      return 1;
    });
    cluster.submit_all(1, shard_request(layout::kOpAllgather));
    expect_ended(cluster, 1);
    EXPECT_THAT(cluster.failure().message(),
                AllOf(HasSubstr("expects 4000 bytes"), HasSubstr(longer ? "sent 4004" : "sent 3996")));
  }
}

TEST(ShardsRefused, AHopOfTheOtherHalfIsNotTaken) {
  for (const uint8_t operation : {layout::kOpAllgather, layout::kOpReduceScatter}) {
    Cluster cluster(shard_options(3, 1, 1));
    cluster.add_bucket(1, shard_shape(30'000, Dtype::kFloat32));
    bool changed = false;
    cluster.network().set_filter([&](transport::SimMessage& message) {
      engine::MessageHeader header;
      std::memcpy(&header, message.header.data(), sizeof(header));
      if (header.kind != static_cast<uint8_t>(engine::MessageKind::kGrant) && !changed) {
        changed = true;
        header.hop = operation == layout::kOpAllgather ? 0 : 2;
        header.checksum = engine::message_checksum(header);
        std::memcpy(message.header.data(), &header, sizeof(header));
      }
      return 1;
    });
    cluster.submit_all(1, shard_request(operation));
    expect_ended(cluster, 1);
    EXPECT_THAT(cluster.failure().message(), AnyOf(HasSubstr("expects hops from 2 and below 4"),
                                                   HasSubstr("expects hops from 0 and below 2")));
  }
}

// Bits of headers flip behind a right checksum, messages come twice or shorter: an error or the right result.
TEST(ShardsRefused, ChangedMessagesNeverSpoilAResult) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    std::mt19937_64 random(seed);
    const auto nodes = static_cast<uint32_t>(2 + random() % 4);
    Cluster cluster(shard_options(nodes, 1, seed));
    cluster.add_bucket(1, shard_shape((seed % 3 == 0 ? 20'000u : 100u) * nodes, Dtype::kInt32));
    uint64_t until = random() % (4 * nodes);
    cluster.network().set_filter([&](transport::SimMessage& message) {
      if (until-- != 0) {
        return 1;
      }
      engine::MessageHeader header;
      if (seed % 4 == 0) {
        return 2;
      }
      if (seed % 4 == 1) {
        message.payload.resize(random() % (message.payload.size() + 1));
      }
      do {
        std::memcpy(&header, message.header.data(), sizeof(header));
        const uint64_t bit = 128 + random() % (8 * offsetof(engine::MessageHeader, checksum) - 128);
        if (seed % 4 > 1) {
          reinterpret_cast<unsigned char*>(&header)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
        }
      } while (header.flags == engine::kMessageNotFinite);  // a lie that only its author can tell
      header.payload_bytes = static_cast<uint32_t>(message.payload.size());
      header.checksum = engine::message_checksum(header);
      std::memcpy(message.header.data(), &header, sizeof(header));
      return 1;
    });
    for (uint32_t step = 1; step <= 3 && cluster.failure().ok(); ++step) {
      const Request request =
          shard_request(step % 2 == seed % 2 ? layout::kOpAllgather : layout::kOpReduceScatter);
      for (uint32_t rank = 0; rank < nodes; ++rank) {
        fill_rank(cluster, rank, 1, Dtype::kInt32, request.reduce_op, step);
      }
      cluster.submit_all(1, request);
      cluster.run_until([&] { return cluster.completed(1); }, 10'000'000'000);
      for (uint32_t rank = 0; rank < nodes; ++rank) {
        const layout::Completion* const completion = cluster.rank(rank).completion(1);
        ASSERT_TRUE(completion != nullptr || !cluster.node(rank).stalls.empty()) << "seed " << seed;
        if (completion != nullptr && completion->status == 0) {
          expect_result(cluster, rank, 1, Dtype::kInt32, request, step);
        }
      }
      if (!cluster.completed(1)) {
        break;  // a message was dropped, and the clocks have said so
      }
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(ShardsRefused, ANodeThatDiesEndsThemForItsNeighboursAtAnyMoment) {
  for (const uint8_t operation : {layout::kOpAllgather, layout::kOpReduceScatter}) {
    uint32_t broken = 0;
    for (uint64_t after = 0; after < 8'000'000; after += 400'000) {
      ClusterOptions options = shard_options(4, 2, 3);
      options.network.bytes_per_second = 100'000'000;
      Cluster cluster(options);
      cluster.add_bucket(1, shard_shape(200'000, Dtype::kFloat32));
      cluster.submit_all(1, shard_request(operation));
      pass(cluster, after);
      if (cluster.completed(1)) {
        break;
      }
      cluster.kill(2);
      if (!cluster.run_until([&] { return cluster.completed(1); }, 4'000'000'000)) {
        // Who only listens to the dead node learns it from the control plane.
        EXPECT_TRUE(cluster.failure().ok());
        for (const uint32_t node : {0u, 1u, 3u}) {
          cluster.node(node).engine->abort_job(Cluster::kJob, Status(Code::kUnavailable, "node 2 is gone"));
        }
        ASSERT_TRUE(cluster.run_until([&] { return cluster.completed(1); }, 1'000'000));
      }
      if (cluster.failure().ok()) {
        continue;
      }
      ++broken;
      EXPECT_THAT(cluster.failure().message(), HasSubstr("node 2 (node-2)"));
      for (uint32_t rank = 0; rank < cluster.world(); ++rank) {
        if (cluster.node(cluster.rank(rank).node).engine != nullptr) {
          const int32_t status = cluster.rank(rank).completion(1)->status;
          EXPECT_TRUE(status == GW_ERR_ABORTED || status == GW_OK);
        }
      }
    }
    EXPECT_GT(broken, 5u);
  }
}

TEST(ShardsRefused, ARankThatLeavesIsMissedByName) {
  for (const uint8_t operation : {layout::kOpAllgather, layout::kOpReduceScatter}) {
    Cluster cluster(shard_options(2, 2, 1));
    cluster.add_bucket(1, shard_shape(40'000, Dtype::kFloat32));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      cluster.submit(rank, 1, shard_request(operation));
    }
    pass(cluster, 1'000'000);
    const auto last = cluster.node(1).engine->leave_rank(Cluster::kJob, 3);
    ASSERT_TRUE(last.ok());
    cluster.node(0).engine->note_rank_left(Cluster::kJob, 3, *last);
    cluster.run_until([&] { return !cluster.failure().ok(); }, 1'000'000);
    EXPECT_THAT(cluster.failure().message(),
                AllOf(HasSubstr("can never complete"), HasSubstr("rank 3 on node 1 (node-1) has left")));
  }
}

}  // namespace
}  // namespace gradwire::sim
