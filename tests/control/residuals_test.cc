// Residuals that outlive their bucket, their epoch or their job.
#include <gmock/gmock.h>

#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  EXPECT_EQ(node.quotas->held_bytes(7), 2 * 4096u + 2 * 4 * 1000u);
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
  EXPECT_THAT(
      zero->failure().message(),
      AllOf(HasSubstr("user 7 holds 8192 bytes on this node (buckets 8192)"), HasSubstr("asks for 8192 more"),
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

TEST(Residuals, CountWithAllThatIsKnownOfTheirLayers) {
  Compressing cluster({"a"});
  NodeContext& node = *cluster.nodes[0]->context;
  auto layer = layer_state("w", {1, 2, 3});
  node.residuals->keep({7, "gone", "1"}, "x", {layer});
  const uint64_t bare = node.quotas->held_bytes(7);
  EXPECT_EQ(bare, sizeof(layer) + 1 + 3 * sizeof(float));
  layer.pieces.assign(1000, {});
  node.residuals->keep({7, "gone", "2"}, "x", {layer});
  EXPECT_EQ(node.quotas->held_bytes(7), 2 * bare + 1000 * sizeof(compress::LayerState::Piece));
}

TEST(Residuals, StayChargedAndStayThereAsLongAsACopyHasThem) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep(
      {7, "gone", "1"}, "x",
      {layer_state("w", std::vector<float>(1000)), layer_state("v", std::vector<float>(10))});
  node.residuals->keep({7, "gone", "2"}, "x", {layer_state("w", std::vector<float>(1000))});
  const uint64_t held = node.quotas->held_bytes(7);
  auto copy = node.residuals->copy({7, "gone", "1"});
  ASSERT_EQ(copy.size(), 1u);
  EXPECT_EQ(node.quotas->held_bytes(7), held) << "they are shared";
  cluster.quotas.bytes_per_user = 14'000;
  node.quotas->set_limits(cluster.quotas);
  cluster.create_on_all({zero}, {"b0", 0, 0, {{"w", 5}}});
  EXPECT_EQ(node.residuals->copy({7, "gone", "1"}).size(), 1u) << "dropping the older one frees nothing";
  EXPECT_TRUE(node.residuals->copy({7, "gone", "2"}).empty());
  const uint64_t with_bucket = node.quotas->held_bytes(7);
  node.residuals->forget({7, "gone", "1"});
  EXPECT_EQ(node.quotas->held_bytes(7), with_bucket) << "the copy has them";
  copy[0].layers.erase(copy[0].layers.begin());
  EXPECT_EQ(node.quotas->held_bytes(7), with_bucket) << "one of them";
  copy.clear();
  EXPECT_EQ(node.quotas->held_bytes(7), 2 * 4096u);
}

TEST(Residuals, AreReplacedWhereTheQuotaHoldsOnlyOneOfTheTwo) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  ResidualStore& store = *node.residuals;
  const JobIdentity job{7, "job", "0"};
  store.keep({7, "gone", "1"}, "x", {layer_state("w", std::vector<float>(10))});
  store.keep(job, "old", {layer_state("w", std::vector<float>(1000, 1.0F))});
  cluster.quotas.bytes_per_user = node.quotas->held_bytes(7) + 500;
  node.quotas->set_limits(cluster.quotas);
  const auto fits = [](float value) { return layer_state("w", std::vector<float>(1100, value)); };
  auto admitted = store.admit(job, 4500);
  ASSERT_TRUE(admitted.ok()) << admitted.status().message();
  EXPECT_EQ(store.copy(job).at(0).bucket, "old") << "until the new one is complete";
  Status status = store.replace(job, {{"new", {fits(2)}}}, std::move(*admitted));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(store.kept_jobs(), 1u) << "nothing of another job had to give way";
  EXPECT_EQ(store.copy(job).at(0).bucket, "new");
  EXPECT_LE(node.quotas->held_bytes(7), cluster.quotas.bytes_per_user);

  const uint64_t held = node.quotas->held_bytes(7);
  status = store.replace(job, {{"newer", {layer_state("w", std::vector<float>(3000))}}});
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("user 7 holds " + std::to_string(held) + " bytes"),
                    HasSubstr("(kept residuals " + std::to_string(held) + ")"), HasSubstr("instead of"),
                    HasSubstr("compression state that is loaded")));
  EXPECT_EQ(store.copy(job).at(0).bucket, "new") << "a refusal changes nothing";
  EXPECT_EQ(store.kept_jobs(), 1u);
  EXPECT_EQ(node.quotas->held_bytes(7), held);
  EXPECT_FALSE(store.admit(job, 12'000).ok());
  const auto copy = store.copy(job);
  EXPECT_FALSE(store.admit(job, 4500).ok()) << "who saves the old one has it as long as that takes";
}

TEST(Residuals, OfOtherJobsGiveWayToAStateThatIsLoaded) {
  Compressing cluster({"a"});
  const auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  node.residuals->keep({7, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1000))});
  node.residuals->keep({8, "gone", "1"}, "x", {layer_state("w", std::vector<float>(1000))});
  cluster.quotas.bytes_per_user = 6000;
  node.quotas->set_limits(cluster.quotas);
  EXPECT_FALSE(node.residuals->admit({7, "job", "0"}, 6001).ok());
  EXPECT_EQ(node.residuals->kept_jobs(), 2u) << "it would not have helped";
  const auto admitted = node.residuals->admit({7, "job", "0"}, 5000);
  ASSERT_TRUE(admitted.ok()) << admitted.status().message();
  EXPECT_EQ(node.residuals->kept_jobs(), 1u);
  EXPECT_THAT(node.quotas->charge_bytes(7, 2000, "more").status().message(),
              AllOf(HasSubstr("(loading of compression states 5000)"),
                    HasSubstr("let the saving and loading of compression states end")));
}

TEST(Residuals, AreFreedInTheWorkshop) {
  Compressing cluster({"a"});
  NodeContext& node = *cluster.nodes[0]->context;
  auto layer = layer_state("w", std::vector<float>(1000));
  const std::weak_ptr<const std::vector<float>> memory = layer.residual.memory;
  std::vector<compress::LayerState> layers;
  layers.push_back(std::move(layer));
  node.residuals->keep({7, "gone", "1"}, "x", std::move(layers));
  cluster.nodes[0]->workshop->closed = true;
  node.residuals->forget({7, "gone", "1"});
  EXPECT_EQ(node.quotas->held_bytes(7), 0u) << "free for whatever the workshop makes next";
  EXPECT_FALSE(memory.expired());
  cluster.nodes[0]->workshop->open();
  EXPECT_TRUE(memory.expired());
}

TEST(Residuals, ComeBackFromABucketThatWasBeingBuiltWhenItsEpochFailed) {
  Compressing cluster({"a"});
  auto zero = cluster.join(0, 0, 1);
  NodeContext& node = *cluster.nodes[0]->context;
  InlineWorkshop& workshop = *cluster.nodes[0]->workshop;
  const JobIdentity job{7, "job", "0"};
  node.residuals->keep(job, "old", {layer_state("w", {1, 2, 3})});
  workshop.closed = true;
  cluster.create(zero, gradient("b0", "w", 3));
  ASSERT_EQ(node.residuals->copy(job).size(), 1u);
  workshop.open();  // what was asked for first
  workshop.closed = true;
  cluster.scheduler.settle();
  ASSERT_TRUE(node.residuals->copy(job).empty()) << "the bucket that is being built has them";
  kill(cluster, zero);
  zero = nullptr;
  cluster.scheduler.settle();
  workshop.open();
  cluster.scheduler.settle();
  EXPECT_EQ(node.residuals->kept_jobs(), 1u);
  zero = cluster.join(0, 0, 1);
  cluster.create_on_all({zero}, gradient("b1", "w", 3));
  EXPECT_THAT(cluster.nodes[0]->engine->buckets.begin()->second->reducer->residual(), ElementsAre(1, 2, 3));
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
