// Residuals that outlive their bucket, their epoch or their job.
#include <gmock/gmock.h>

#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

compress::LayerState layer_state(const std::string& name, std::vector<float> residual) {
  compress::LayerState state;
  state.name = name;
  state.elements = residual.size();
  state.residual = std::make_shared<const std::vector<float>>(std::move(residual));
  state.operations = 5;
  return state;
}

// A cluster whose policy compresses.
struct Compressing : TestCluster {
  explicit Compressing(const std::vector<std::string>& names, Nanoseconds residual_ttl = seconds(600))
      : TestCluster(names, residual_ttl) {
    config::CompressionPolicy l8;
    l8.defaults.codec = "l8";
    coordinator->set_policy(config::policy_to_json(l8));
  }
};

TEST(Residuals, GoFromABucketToTheOneThatTakesItsLayersOver) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  ResidualStore& store = *cluster.nodes[0]->context->residuals;
  const JobIdentity job{7, "job", "0"};
  store.keep(job, "old", {layer_state("w", {1, 2, 3}), layer_state("other", {9})});
  cluster.create_on_all({zero}, gradient("b0", "w", 3));
  const auto& buckets = cluster.nodes[0]->engine->buckets;
  EXPECT_THAT(buckets.at(1)->reducer->residual(), ElementsAre(1, 2, 3));
  // Destroyed and made anew, in another shape: the layer's name counts. The answer comes when it is kept.
  cluster.destroy(zero, 1);
  EXPECT_TRUE(zero->answer && zero->answer->ok());
  cluster.create_on_all({zero}, {"b1", 0, kBucketGradient, {{"x", 64}, {"w", 3}}});
  const auto residual = buckets.at(2)->reducer->residual();
  ASSERT_EQ(residual.size(), 67u);
  EXPECT_EQ(residual[64], 1);
  EXPECT_EQ(residual[66], 3);
  EXPECT_TRUE(store.take(job, "b1", gradient("b1", "w", 3).layers).empty()) << "each is taken once";
  EXPECT_TRUE(store.take(job, "b1", gradient("b1", "other", 2).layers).empty()) << "another size";
  EXPECT_EQ(store.take(job, "b1", gradient("b1", "other", 1).layers).size(), 1u);
}

TEST(Residuals, OutliveAFailedEpochForTheirTimeAndCountForTheUser) {
  Compressing cluster({"a"}, seconds(60));
  auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  const JobIdentity job{7, "job", "0"};
  node.residuals->keep(job, "old", {layer_state("w", std::vector<float>(1000, 1.5F))});
  cluster.create_on_all({zero}, gradient("b0", "w", 1000));
  EXPECT_EQ(node.residuals->kept_bytes(), 0u);
  EXPECT_EQ(node.quotas->held_bytes(7), 2 * 4096u + 2 * 4 * 1000u + 4 * 1000u) << "l8 decodes into scratch";
  kill(cluster, zero);
  EXPECT_EQ(node.residuals->kept_jobs(), 1u);
  EXPECT_GE(node.residuals->kept_bytes(), 4000u);
  EXPECT_EQ(node.quotas->held_bytes(7), node.residuals->kept_bytes());
  cluster.scheduler.advance(seconds(50));
  zero = cluster.join(0, 0, 1);
  cluster.scheduler.advance(seconds(50));
  cluster.create_on_all({zero}, gradient("b0", "w", 1000));
  EXPECT_EQ(cluster.nodes[0]->engine->buckets.begin()->second->reducer->residual()[999], 1.5F);
  kill(cluster, zero);
  cluster.scheduler.advance(seconds(61));
  EXPECT_EQ(node.residuals->kept_jobs(), 0u);
  EXPECT_EQ(node.quotas->held_bytes(7), 0u);
  EXPECT_EQ(cluster.scheduler.timers(), 0u);
}

TEST(Residuals, AreDroppedByAnOrderlyEndAFreshJoinAndATimeOfNothing) {
  for (const bool fresh : {false, true}) {
    Compressing cluster({"a"});
    const auto zero = cluster.join(0, 0, 1);
    NodeContext& node = *cluster.nodes[0]->context;
    node.residuals->keep({7, "job", "0"}, "old", {layer_state("w", {1, 2})});
    cluster.create_on_all({zero}, gradient("b0", "w", 2));
    if (fresh) {
      kill(cluster, zero);
      EXPECT_EQ(node.residuals->kept_jobs(), 1u);
      cluster.join(0, 0, 1, JoinOptions{.fresh = true});
    } else {
      cluster.leave(zero);
      zero->bucket.reset();  // the client closes what it had
    }
    EXPECT_EQ(node.residuals->kept_jobs(), 0u);
    EXPECT_EQ(node.quotas->held_bytes(7), 0u);
  }
  Compressing cluster({"a"}, seconds(0));
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep({7, "job", "0"}, "old", {layer_state("w", {1, 2})});
  EXPECT_GT(node.quotas->held_bytes(7), 0u) << "as long as the epoch lives";
  kill(cluster, zero);
  EXPECT_EQ(node.quotas->held_bytes(7), 0u);
}

TEST(Residuals, GiveWayToBucketsTheOldestFirst) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep({7, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1000))});
  node.residuals->keep({7, "gone", "2"}, "x", {layer_state("w", std::vector<float>(1000))});
  node.residuals->keep({8, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1000))});
  cluster.quotas.bytes_per_user = 14'000;
  node.quotas->set_limits(cluster.quotas);
  cluster.create_on_all({zero}, {"b0", 0, 0, {{"w", 5}}});
  EXPECT_EQ(node.residuals->kept_jobs(), 2u) << "the oldest of this user went";
  EXPECT_TRUE(node.residuals->take({7, "gone", "1"}, "x", gradient("x", "w", 1000).layers).empty());
  EXPECT_EQ(node.residuals->take({7, "gone", "2"}, "x", gradient("x", "w", 1000).layers).size(), 1u);
  cluster.create(zero, {"b1", 0, 0, {{"w", 5}}});
  EXPECT_THAT(zero->failure().message(),
              AllOf(HasSubstr("user 7 holds 8192 bytes"), HasSubstr("asks for 8192 more"),
                    HasSubstr("quotas.bytes_per_user is 14000"), HasSubstr("destroy buckets")));
}

TEST(Residuals, AreKeptWhereDroppingThemAllWouldNotHelp) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep({7, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1000))});
  cluster.quotas.bytes_per_user = 14'000;
  node.quotas->set_limits(cluster.quotas);
  cluster.create(zero, {"b0", 0, 0, {{"w", 4000}}});  // two regions of 16,384 bytes
  EXPECT_THAT(zero->failure().message(), HasSubstr("asks for 32768 more"));
  EXPECT_EQ(node.residuals->kept_jobs(), 1u) << "more than the quota";
  cluster.create_on_all({zero}, {"b1", 0, 0, {{"w", 5}}});
  cluster.create(zero, {"b2", 0, 0, {{"w", 5}}});
  EXPECT_THAT(zero->failure().message(), HasSubstr("asks for 8192 more"));
  EXPECT_EQ(node.residuals->kept_jobs(), 1u) << "more than the quota beside the bucket that is there";
  cluster.destroy(zero, 2);
  cluster.quotas.bytes_per_user = 11'000;
  node.quotas->set_limits(cluster.quotas);
  cluster.create_on_all({zero}, {"b3", 0, 0, {{"w", 5}}});
  EXPECT_EQ(node.residuals->kept_jobs(), 0u) << "here it helps";
}

TEST(Residuals, ComeBackFromABucketThatFailedElsewhere) {
  Compressing cluster({"a", "b"});
  const auto zero = cluster.join(0, 0, 2);
  const auto one = cluster.join(1, 1, 2);
  cluster.nodes[0]->context->residuals->keep({7, "job", "0"}, "old", {layer_state("w", {1, 2, 3})});
  cluster.nodes[1]->engine->add_bucket_result = Status(Code::kInvalidArgument, "no");
  for (const auto& rank : {zero, one}) {
    cluster.create(rank, gradient("b0", "w", 3));
  }
  EXPECT_FALSE(zero->bucket->ok());
  cluster.nodes[1]->engine->add_bucket_result = ok_status();
  cluster.create_on_all({zero, one}, gradient("b0", "w", 3));
  EXPECT_EQ(cluster.nodes[0]->engine->buckets.at(2)->reducer->residual()[2], 3);
}

}  // namespace
}  // namespace gradwire::control::testing
