// A trainer saves and loads its job's compression state: windows, contents, refusals.
#include <gmock/gmock.h>

#include <random>

#include "tests/control/state_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StateTransfer, WhatBucketsAndTheStoreHaveComesBackInAnotherDaemon) {
  Bytes bytes;
  {
    World world;
    Trainer trainer(world, 0);
    world.node().residuals->keep(kJob, "old", {layer_state("w", {1, 2, 3}), layer_state("other", {9})});
    ASSERT_EQ(trainer.create("b0", {{"w", 3}, {"fresh", 5}})["type"], "bucket_created");
    ASSERT_EQ(trainer.create("untouched", {{"u", 3}})["type"], "bucket_created");
    const uint64_t held = world.held();
    bytes = trainer.save();
    EXPECT_EQ(world.held(), held + (1U << 20)) << "the window, which the trainer has mapped";
    EXPECT_EQ(trainer.ask({{"type", "state_next"}})["type"], "error") << "all has come";
  }
  const auto sections = parsed(bytes);
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_EQ(sections[0].bucket, "old");
  EXPECT_EQ(sections[0].layers.at(0).name, "other");
  EXPECT_EQ(sections[1].bucket, "b0");
  ASSERT_EQ(sections[1].layers.size(), 2u);
  EXPECT_THAT(*sections[1].layers[0].residual.memory, ElementsAre(1, 2, 3));
  EXPECT_EQ(sections[1].layers[0].operations, 5u);

  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.load(bytes)["type"], "ok");
  EXPECT_EQ(trainer.load(bytes)["type"], "ok") << "the same once more";
  ASSERT_EQ(trainer.create("anything", {{"fresh", 5}, {"w", 3}})["type"], "bucket_created");
  const auto residual = world.engine().buckets.at(1)->reducer->residual();
  EXPECT_THAT(std::vector<float>(residual.begin(), residual.end()), ElementsAre(0, 0, 0, 0, 0, 1, 2, 3));
  EXPECT_EQ(world.node().residuals->copy(kJob).size(), 1u) << "the layer that is in no bucket yet";
  trainer.die();
  world.scheduler.advance(seconds(700));
  EXPECT_EQ(world.held(), 0u);
}

TEST(StateTransfer, LargeOnesGoWindowByWindowAndTheEngineIsAskedInTurns) {
  World world;
  Trainer trainer(world, 0);
  std::vector<float> values(kLarge);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  world.node().residuals->keep(kJob, "old", {layer_state("w", values)});
  ASSERT_EQ(trainer.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  const uint64_t held = world.held();
  const Bytes bytes = trainer.save();
  EXPECT_EQ(trainer.parts, 3);
  EXPECT_GE(world.engine().looks, 6);
  EXPECT_EQ(*parsed(bytes).at(0).layers.at(0).residual.memory, values);
  EXPECT_EQ(world.held(), held + kWindow) << "the copy is gone";
  World other;
  Trainer loading(other, 0);
  ASSERT_EQ(loading.load(bytes)["type"], "ok");
  ASSERT_EQ(loading.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  EXPECT_EQ(other.engine().buckets.at(1)->reducer->residual()[kLarge - 1], values.back());
}

TEST(StateTransfer, TheMomentumOfExactLayersGoesToo) {
  config::CompressionPolicy policy;
  policy.defaults.codec = "none";
  policy.defaults.momentum = 0.5;
  World world;
  world.coordinator->set_policy(config::policy_to_json(policy));
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", 300'000}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, 300'000);
  const Bytes bytes = trainer.save();
  const auto sections = parsed(bytes);
  ASSERT_TRUE(sections.at(0).layers.at(0).velocity.kept);
  EXPECT_EQ(sections[0].layers[0].velocity.memory->back(), 0.3F);
  World other;
  other.coordinator->set_policy(config::policy_to_json(policy));
  Trainer loading(other, 0);
  ASSERT_EQ(loading.load(bytes)["type"], "ok");
  ASSERT_EQ(loading.create("anything", {{"x", 5}, {"w", 300'000}})["type"], "bucket_created");
  std::vector<float> kept(1);
  other.engine().buckets.at(1)->reducer->copy_kept(300'004, kept);
  EXPECT_EQ(kept[0], 0.3F);
}

TEST(StateTransfer, EachLocalRankGetsTheSameAndALaterLoadReplacesAnEarlierOne) {
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  world.node().residuals->keep(kJob, "old", {layer_state("w", {1, 2, 3})});
  const Bytes bytes = zero.save();
  EXPECT_EQ(one.save(), bytes);
  world.node().residuals->keep(kJob, "newer", {layer_state("w", {7, 7, 7})});
  for (Trainer* trainer : {&zero, &one}) {
    ASSERT_EQ(trainer->load(bytes)["type"], "ok");
  }
  const auto sections = world.node().residuals->copy(kJob);
  ASSERT_EQ(sections.size(), 1u) << "what was kept before is gone";
  EXPECT_THAT(*sections[0].layers[0].residual.memory, ElementsAre(1, 2, 3));
}

TEST(StateTransfer, IsSavedBetweenOperationsOnly) {
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", 3000}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, 3000);
  world.engine().busy_buckets.insert(1);
  Json answer = trainer.open("save");
  EXPECT_EQ(answer["code"], "unavailable") << answer;
  world.engine().busy_buckets.clear();
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  operate(*world.engine().buckets.at(1)->reducer, 3000);
  answer = trainer.ask({{"type", "state_next"}});
  EXPECT_EQ(answer["code"], "unavailable");
  EXPECT_THAT(answer["message"].get<std::string>(),
              AllOf(HasSubstr("b0"), HasSubstr("while its state was being saved")));
  EXPECT_EQ(trainer.ask({{"type", "state_next"}})["type"], "error");
  EXPECT_GT(trainer.save().size(), 12000u) << "trying again helps";
}

TEST(StateTransfer, IsLoadedBeforeBucketsThatCouldUseIt) {
  World world;
  Trainer trainer(world, 0);
  const Bytes bytes = [&] {
    world.node().residuals->keep(kJob, "old", {layer_state("w", {1, 2, 3})});
    return trainer.save();
  }();
  ASSERT_EQ(trainer.create("exact", {{"p", 9}}, 0)["type"], "bucket_created");
  EXPECT_EQ(trainer.load(bytes)["type"], "ok") << "exact buckets have no residuals";
  const Json created = trainer.create("b0", {{"x", 3}});
  const Json answer = trainer.load(bytes);
  EXPECT_EQ(answer["code"], "invalid_argument");
  EXPECT_THAT(answer["message"].get<std::string>(), AllOf(HasSubstr("b0"), HasSubstr("before buckets")));
  ASSERT_EQ(trainer.ask({{"type", "bucket_destroy"}, {"bucket", created["bucket"]}})["type"], "ok");
  EXPECT_EQ(trainer.load(bytes)["type"], "ok");
}

TEST(StateTransfer, WhatIsDamagedOrTooMuchChangesNothing) {
  World world;
  Trainer trainer(world, 0);
  world.node().residuals->keep(kJob, "old", {layer_state("w", std::vector<float>(5000, 1))});
  Bytes bytes = trainer.save();
  const uint64_t kept = world.held() - (1U << 20);
  ASSERT_TRUE(world.node().residuals->replace(kJob, {{"older", {layer_state("w", {4, 5})}}}).ok());
  const auto as_before = [&] {
    const auto sections = world.node().residuals->copy(kJob);
    ASSERT_EQ(sections.size(), 1u);
    EXPECT_EQ(sections[0].bucket, "older");
  };
  bytes[15000] ^= std::byte{4};
  Json answer = trainer.load(bytes);
  EXPECT_EQ(answer["code"], "invalid_argument");
  EXPECT_THAT(answer["message"].get<std::string>(), AllOf(HasSubstr("damaged"), HasSubstr("\"w\"")));
  as_before();
  bytes[15000] ^= std::byte{4};
  answer = trainer.load(std::span(bytes).first(15000));
  EXPECT_THAT(answer["message"].get<std::string>(), HasSubstr("ends at byte 15000"));
  as_before();
  EXPECT_THAT(trainer.load({})["message"].get<std::string>(), HasSubstr("ends at byte 0"));
  trainer.unmap();
  world.limit(world.held() + (1U << 20) + kept - 5000);
  answer = trainer.load(bytes);
  EXPECT_EQ(answer["code"], "resource_exhausted") << answer;
  EXPECT_THAT(answer["message"].get<std::string>(),
              AllOf(HasSubstr("a compression state that is loaded"), HasSubstr("quotas.bytes_per_user")));
  as_before();
  world.limit(1U << 20);
  EXPECT_THAT(trainer.open("load")["message"].get<std::string>(), HasSubstr("a window"));
}

TEST(StateTransfer, AHostileTrainerIsToldWhatIsWrong) {
  World world;
  Trainer trainer(world, 0);
  EXPECT_EQ(trainer.open("sideways")["code"], "invalid_argument");
  EXPECT_EQ(trainer.ask({{"type", "state_next"}})["type"], "error");
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", 1}, {"last", false}})["type"], "error");
  const std::vector<std::pair<Json, const char*>> refused = {
      {{{"type", "state_next"}}, "no compression state is being saved"},  // the other direction
      {{{"type", "state_put"}, {"bytes", kWindow + 1}, {"last", false}}, "bytes"},
      {{{"type", "state_put"}, {"bytes", -1}, {"last", false}}, "bytes"},
      {{{"type", "state_put"}, {"bytes", uint64_t{1} << 60}, {"last", true}}, "bytes"},
      {{{"type", "state_put"}, {"bytes", 8}, {"last", "yes"}}, "last"},
      {{{"type", "state_put"}, {"bytes", kWindow}, {"last", false}}, "not a compression state"},
  };
  for (const auto& [request, why] : refused) {
    ASSERT_EQ(trainer.open("load")["type"], "state_opened");
    Json answer = trainer.ask(request);
    EXPECT_EQ(answer["type"], "error") << request;
    EXPECT_THAT(answer.value("message", ""), HasSubstr(why));
    answer = trainer.ask({{"type", "state_put"}, {"bytes", 0}, {"last", false}});
    EXPECT_THAT(answer.value("message", ""), HasSubstr("state_open first")) << "a refusal ends it";
  }
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  ASSERT_EQ(trainer.open("load")["type"], "state_opened") << "instead of the other";
  EXPECT_EQ(trainer.ask({{"type", "state_close"}})["type"], "ok");
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", 0}, {"last", true}})["type"], "error");
  ASSERT_EQ(trainer.open("load")["type"], "state_opened");
  trainer.die();
  EXPECT_EQ(world.held(), 0u);
}

// As a trainer does whose wait has timed out.
TEST(StateTransfer, ACloseWhileARequestIsOutstandingFollowsItsAnswer) {
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, kLarge);
  const uint64_t held = world.held();
  const Json next = {{"type", "state_next"}};
  const Json open = {{"type", "state_open"}, {"direction", "save"}};
  for (const Json& outstanding : {next, open}) {
    ASSERT_EQ(trainer.open("save")["type"], "state_opened");
    trainer.send(outstanding);
    const size_t before = trainer.heard();
    trainer.send({{"type", "state_close"}});
    EXPECT_EQ(trainer.heard(), before);
    world.scheduler.settle();
    EXPECT_EQ(trainer.heard(), before + 2) << "both answers";
    EXPECT_TRUE(trainer.answered());
    EXPECT_EQ(trainer.last()["type"], "ok") << trainer.last();
    EXPECT_LE(world.held(), held + kWindow) << "but for the window that is mapped";
    EXPECT_EQ(trainer.ask(next)["type"], "error");
  }
  trainer.send(open);
  trainer.send({{"type", "state_close"}});
  trainer.send({{"type", "state_close"}});
  EXPECT_THAT(trainer.last().value("message", ""), HasSubstr("a request is outstanding"));
  trainer.die();
  EXPECT_EQ(world.held(), world.node().residuals->kept_bytes());
}

TEST(StateTransfer, ACloseWhileTheLastPartIsBeingLoadedComesAfterTheLoad) {
  const Bytes bytes = saved_sevens();
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.open("load")["type"], "state_opened");
  std::copy(bytes.begin(), bytes.end(), trainer.window().begin());
  trainer.send({{"type", "state_put"}, {"bytes", bytes.size()}, {"last", true}});
  trainer.send({{"type", "state_close"}});
  world.scheduler.settle();
  ASSERT_TRUE(trainer.answered());
  EXPECT_EQ(trainer.last()["type"], "ok") << trainer.last();
  EXPECT_EQ(world.node().residuals->copy(kJob).size(), 1u);
}

TEST(StateTransfer, RequestsInAnyOrderAreAnsweredAndLeaveNothing) {
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", 3000}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, 3000);
  const uint64_t held = world.held();
  std::mt19937 random(5);
  const std::vector<Json> requests = {{{"type", "state_open"}, {"direction", "save"}},
                                      {{"type", "state_open"}, {"direction", "load"}},
                                      {{"type", "state_next"}},
                                      {{"type", "state_put"}, {"bytes", 64}, {"last", false}},
                                      {{"type", "state_put"}, {"bytes", 0}, {"last", true}},
                                      {{"type", "state_put"}, {"bytes", uint64_t{1} << 52}, {"last", true}},
                                      {{"type", "state_close"}},
                                      {{"type", "traffic"}}};
  int good = 0;
  for (int i = 0; i < 2000; ++i) {
    const Json answer = trainer.ask(requests[random() % requests.size()]);
    good += answer["type"] == "error" ? 0 : 1;
    if (random() % 7 == 0) {  // a second one before the answer
      trainer.send(requests[random() % requests.size()]);
      trainer.send(requests[random() % requests.size()]);
      world.scheduler.settle();
    }
  }
  EXPECT_GT(good, 500);
  EXPECT_EQ(trainer.ask({{"type", "state_close"}})["type"], "ok");
  EXPECT_LE(world.held(), held + kWindow);
  trainer.die();
  EXPECT_EQ(world.held(), world.node().residuals->kept_bytes());
}

}  // namespace
}  // namespace gradwire::control::testing
