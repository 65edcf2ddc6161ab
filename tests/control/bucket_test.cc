// Buckets through real members and a real coordinator, on virtual time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include "daemon/control/plan_document.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest bucket_of(const std::string& name, uint64_t last = 10) {
  return {name, 0, kBucketGradient, {{"fc.weight", 1000}, {"fc.bias", last}}};
}

TEST(Buckets, AreReadyWhenEveryRankCreatedThemAndEveryNodeBuiltThem) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const uint32_t rank : {0, 1, 2}) {
    cluster.create(ranks[rank], bucket_of("b0"));
    EXPECT_FALSE(ranks[rank]->bucket);
  }
  cluster.create(ranks[3], bucket_of("b0"));
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->bucket && rank->bucket->ok());
    const BucketCreated& created = **rank->bucket;
    EXPECT_EQ(created.bucket, 1u);
    EXPECT_GE(created.gradient_bytes, 1010u * 4);
    EXPECT_NE(created.gradient->get(), created.result->get());
  }
  const engine::BucketSpec& spec = *cluster.nodes[1]->engine->buckets.at(1);
  EXPECT_EQ(spec.elements, 1010u);
  EXPECT_EQ(spec.gradients.size(), 2u);
  EXPECT_EQ(spec.reducer->geometry().chunks(), 2u);
  // What a trainer writes is what the engine reads.
  const int fd = (**ranks[3]->bucket).gradient->get();
  auto* data = static_cast<float*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ASSERT_NE(data, MAP_FAILED);
  data[7] = 1.5f;
  EXPECT_EQ(static_cast<const float*>(spec.gradients[1])[7], 1.5f);
  munmap(data, 4096);
}

TEST(Buckets, OfEveryDtypeHaveShardsWhereTheWorldDividesTheElements) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (uint8_t dtype = 0; dtype <= 6; ++dtype) {
    const std::string name = "b" + std::to_string(dtype);
    cluster.create_on_all(ranks, {name, dtype, kBucketGradient, {{"w", 100}, {"v", 100}}});
    const engine::BucketSpec& spec = *cluster.nodes[1]->engine->buckets.at(1 + 2 * dtype);
    ASSERT_TRUE(spec.shards);
    // Chunk (n + 1) mod P holds the shards of node n's ranks.
    EXPECT_EQ(spec.shards->geometry().segments(1).front().first_element, 0u);
    EXPECT_EQ(spec.shards->geometry().segments(0).front().first_element, 100u);
    cluster.create_on_all(ranks, {name + " odd", dtype, 0, {{"w", 101}}});
    EXPECT_FALSE(cluster.nodes[1]->engine->buckets.at(2 + 2 * dtype)->shards);
  }
  cluster.create_on_all(ranks, {"empty", 0, 0, {}});
}

TEST(Buckets, TheirNumberIsBounded) {
  TestCluster cluster({"a"});
  cluster.quotas.buckets_per_job = 1;
  cluster.nodes[0]->context->quotas->set_limits(cluster.quotas);
  const auto zero = cluster.join(0, 0, 1);
  cluster.create_on_all({zero}, bucket_of("b0"));
  cluster.create(zero, bucket_of("b1"));
  EXPECT_THAT(zero->failure().message(),
              AllOf(HasSubstr("1 buckets on node a and asks for 1 more ("), HasSubstr("'b1'"),
                    HasSubstr("quotas.buckets_per_job is 1"), HasSubstr("put more layers into each")));
}

TEST(Buckets, TheCoordinatorsPlanDecides) {
  TestCluster cluster({"a", "b", "c"});
  config::PlanOptions direct = pinned();
  direct.algorithm = "direct";
  cluster.coordinator->set_plan(direct);
  const auto zero = cluster.join(0, 0, 3);
  const auto one = cluster.join(1, 1, 3);
  const auto two = cluster.join(2, 2, 3);
  for (const auto& rank : {zero, one, two}) {
    cluster.create(rank, {"b0", 0, kBucketGradient, {{"w", 5000}}});
  }
  ASSERT_TRUE(two->bucket && two->bucket->ok());
  for (const auto& rank : {zero, one, two}) {
    cluster.create(rank, {"exact", 0, 0, {{"w", 5000}}});
  }
  for (const auto& node : cluster.nodes) {
    ASSERT_EQ(node->engine->buckets.size(), 2u);
    for (const auto& [number, bucket] : node->engine->buckets) {
      EXPECT_EQ(bucket->algorithm,
                bucket->name == "b0" ? engine::Algorithm::kDirect : engine::Algorithm::kRing);
    }
  }
}

TEST(Buckets, TheCoordinatorsPolicyDecides) {
  config::CompressionPolicy l8;
  l8.defaults.codec = "l8";
  TestCluster cluster({"a", "b"});
  cluster.coordinator = std::make_unique<Coordinator>(
      cluster.scheduler,
      CoordinatorOptions{cluster.nodes[0]->context->self, seconds(2), seconds(10), config::policy_to_json(l8),
                         [](size_t bytes) { return std::string(bytes, 'k'); }});
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2);
  cluster.create(zero, {"b0", 0, kBucketGradient, {{"w", 5000}}});
  cluster.create(one, {"b0", 0, kBucketGradient, {{"w", 5000}}});
  ASSERT_TRUE(one->bucket && one->bucket->ok());
  EXPECT_EQ((**one->bucket).codec, "l8");
  cluster.create(zero, {"exact", 0, 0, {{"w", 5000}}});
  cluster.create(one, {"exact", 0, 0, {{"w", 5000}}});
  EXPECT_EQ((**one->bucket).codec, "none");
}

TEST(Buckets, ADifferenceIsPrintedToEveryRankAndTheNameCanBeUsedAfterwards) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.create(ranks[0], bucket_of("b0"));
  cluster.create(ranks[2], bucket_of("b0", 12));
  for (const uint32_t rank : {0, 2}) {
    EXPECT_EQ(ranks[rank]->failure().code(), Code::kMismatch);
    EXPECT_THAT(ranks[rank]->failure().message(),
                AllOf(HasSubstr("'b0'"), HasSubstr("'fc.bias'"), HasSubstr("10 elements on rank 0 (node a)"),
                      HasSubstr("12 on rank 2 (node b)")));
  }
  cluster.create(ranks[0], bucket_of("b0"));  // a second try waits for the others'
  EXPECT_FALSE(ranks[0]->bucket);
  for (const uint32_t rank : {1, 3}) {
    cluster.create(ranks[rank], bucket_of("b0"));
    EXPECT_EQ(ranks[rank]->failure().code(), Code::kMismatch) << "it comes late, and hears the same";
  }
  for (const uint32_t rank : {1, 2, 3}) {
    cluster.create(ranks[rank], bucket_of("b0"));
  }
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->bucket && rank->bucket->ok());
  }
}

TEST(Buckets, ADifferenceInDtypeFlagsOrNumberOfLayersIsNamed) {
  Manifest manifest = bucket_of("b0");
  Manifest other = manifest;
  other.dtype = 4;
  EXPECT_THAT(describe_difference(manifest, "rank 0", other, "rank 1"),
              AllOf(HasSubstr("float32 on rank 0"), HasSubstr("int32 on rank 1")));
  other = manifest;
  other.flags = 0;
  EXPECT_THAT(describe_difference(manifest, "rank 0", other, "rank 1"), HasSubstr("exact on rank 1"));
  other = manifest;
  other.layers.pop_back();
  EXPECT_THAT(describe_difference(manifest, "rank 0", other, "rank 1"),
              HasSubstr("2 layers on rank 0 and 1"));
  other = manifest;
  other.layers[0].first = "conv";
  EXPECT_THAT(describe_difference(manifest, "rank 0", other, "rank 1"), HasSubstr("'fc.weight' on rank 0"));
}

TEST(Buckets, ARankThatNeverCreatesItIsNamedAtTheDeadline) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const uint32_t rank : {0, 1, 2}) {
    cluster.create(ranks[rank], bucket_of("b0"));
  }
  cluster.scheduler.advance(seconds(11));
  EXPECT_EQ(ranks[1]->failure().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(ranks[1]->failure().message(), HasSubstr("by rank 3 (node b)"));
  cluster.create(ranks[3], bucket_of("b0"));
  EXPECT_EQ(ranks[3]->failure().code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(ranks[3]->aborted);
}

TEST(Buckets, ANodeThatDoesNotGetTheMemoryInTimeIsNamed) {
  FakeScheduler scheduler;
  std::vector<std::string> causes;
  const auto node = [](uint32_t rank) { return rank / 2; };
  BucketRounds rounds(
      scheduler, seconds(10), 4, 2,
      BucketRounds::Hooks{
          [&causes](uint32_t, const Json& document) {
            if (document["type"] == "bucket_failed") {
              causes.push_back(document["message"]);
            }
          },
          [](uint32_t rank) { return "rank " + std::to_string(rank); }, node,
          [](const std::vector<uint32_t>& ranks) { return "ranks " + list_ranks(ranks); },
          [](uint32_t, const Manifest&, const auto& answer) { answer(Json::object(), plan_to_json({})); }});
  for (uint32_t rank = 0; rank < 4; ++rank) {
    rounds.created(rank, {"b0", 0, 0, {{"w", 5}}});
  }
  rounds.ready(0, 1);
  scheduler.advance(seconds(11));
  ASSERT_EQ(causes.size(), 2u) << "both nodes hear it";
  EXPECT_THAT(causes[0],
              AllOf(HasSubstr("within operation_timeout (10s) for ranks 2,3"), HasSubstr("smaller buckets")));
}

TEST(Buckets, ANodeWithoutMemoryFailsItForAllAndTheJobGoesOn) {
  TestCluster cluster({"a", "b"});
  cluster.quotas.bytes_per_user = 1 << 20;
  cluster.nodes[1]->context->quotas->set_limits(cluster.quotas);
  const auto ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.create(rank, {"big", 0, 0, {{"w", 100'000}}});
  }
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->failure().code(), Code::kResourceExhausted);
    EXPECT_THAT(
        rank->failure().message(),
        AllOf(HasSubstr("node b"), HasSubstr("2 gradient regions x 401408 + 1 result x 401408 + residuals 0"),
              HasSubstr("quotas.bytes_per_user is 1048576"), HasSubstr("raise it")));
  }
  EXPECT_TRUE(cluster.nodes[0]->engine->buckets.empty());
  for (const auto& rank : ranks) {
    cluster.create(rank, {"big", 0, 0, {{"w", 10'000}}});
    EXPECT_FALSE(rank->aborted);
  }
  EXPECT_TRUE(ranks[0]->bucket->ok());
}

TEST(Buckets, TheLastLocalDestroyFreesItEvenIfTheEngineIsBusyAtFirst) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  for (const auto& rank : ranks) {
    cluster.create(rank, bucket_of("b0"));
  }
  FakeEngine& engine = *cluster.nodes[0]->engine;
  engine.busy_buckets.insert(1);
  cluster.destroy(ranks[0], 1);
  EXPECT_TRUE(ranks[0]->answer->ok());
  EXPECT_FALSE(engine.logged("remove_bucket 1"));
  cluster.destroy(ranks[0], 1);
  EXPECT_EQ(ranks[0]->answer->code(), Code::kNotFound);
  // The name is free for those who have destroyed it, while others still have it.
  cluster.create(ranks[0], bucket_of("b0"));
  EXPECT_FALSE(ranks[0]->bucket);
  cluster.create(ranks[1], bucket_of("b0"));
  EXPECT_EQ(ranks[1]->failure().code(), Code::kAlreadyExists);
  cluster.destroy(ranks[1], 1);
  EXPECT_EQ(engine.buckets.size(), 1u);
  engine.busy_buckets.clear();
  cluster.scheduler.advance(milliseconds(20));
  EXPECT_TRUE(engine.buckets.empty());
  cluster.create(ranks[1], bucket_of("b0"));
  for (const uint32_t rank : {2, 3}) {
    cluster.destroy(ranks[rank], 1);
    cluster.create(ranks[rank], bucket_of("b0"));
  }
  ASSERT_TRUE(ranks[0]->bucket && ranks[0]->bucket->ok());
  EXPECT_EQ((**ranks[0]->bucket).bucket, 2u);
}

TEST(Buckets, TheEndOfTheEpochAnswersWhoeverWaits) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.create(ranks[0], bucket_of("b0"));
  ranks[3]->member->trainer_gone(3, "died (pid 1003)");
  cluster.create(ranks[2], bucket_of("b0"));
  cluster.scheduler.settle();
  EXPECT_EQ(ranks[0]->bucket->status().message(), "rank 3 on node b died (pid 1003)");
  EXPECT_EQ(ranks[2]->bucket->status().message(), "rank 3 on node b died (pid 1003)");
}

TEST(Buckets, ARankThatHasLeftMakesCreationFailAtOnce) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.create(ranks[0], bucket_of("b0"));
  cluster.leave(ranks[3]);
  EXPECT_THAT(ranks[0]->failure().message(), HasSubstr("rank 3 (node b) has left"));
  cluster.create(ranks[1], bucket_of("b1"));
  EXPECT_THAT(ranks[1]->failure().message(), HasSubstr("rank 3 (node b) has left"));
}

// An exact bucket has regions to be charged for, and a residual of nothing.
TEST(Buckets, WhoseJobEndsWhileTheyAreBuiltGiveEverythingBack) {
  for (const bool exact : {true, false}) {
    size_t charged = 0;
    for (int moment = 0; moment < 30; ++moment) {
      TestCluster cluster({"a"});
      const auto rank = cluster.join(0, 0, 1);
      const Manifest manifest{"b0", 0, exact ? 0 : kBucketGradient, {{"w", 4000}}};
      rank->member->create_bucket(
          0, manifest,
          into(rank, [](TestRank& self, const Result<BucketCreated>& made) { self.bucket = made; }));
      for (int step = 0; step < moment; ++step) {
        cluster.scheduler.step();
      }
      const QuotaLedger& quotas = *cluster.nodes[0]->context->quotas;
      charged += quotas.held_bytes(7) > 0 ? 1 : 0;
      rank->bucket.reset();
      rank->member->trainer_gone(0, "died (pid 1)");
      (void)quotas.held_bytes(7);  // as another rank's join: what is gone by now is given back
      cluster.scheduler.settle();
      rank->bucket.reset();
      EXPECT_EQ(quotas.held_bytes(7), 0u) << moment;
    }
    EXPECT_GT(charged, 0u);
  }
}

}  // namespace
}  // namespace gradwire::control::testing
