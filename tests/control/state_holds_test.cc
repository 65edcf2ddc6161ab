// What saving and loading hold and wait for: charges, memory, buckets on their way, turns.
#include <gmock/gmock.h>

#include "daemon/control/bucket_reducer.h"
#include "tests/control/state_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Bucket b0 with a layer of so many elements: the residual of kLarge takes three windows.
void create_on(World& world, const std::vector<Trainer*>& trainers, uint64_t elements = kLarge) {
  for (Trainer* const trainer : trainers) {
    trainer->send({{"type", "bucket_create"},
                   {"name", "b0"},
                   {"dtype", 0},
                   {"flags", kBucketGradient},
                   {"layers", Json::array({Json::array({"w", elements})})}});
  }
  world.scheduler.settle();
  for (Trainer* const trainer : trainers) {
    ASSERT_EQ(trainer->last()["type"], "bucket_created") << trainer->last();
  }
}

TEST(StateTransfer, WhatASaveHoldsIsChargedAsLongAsItHoldsIt) {
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, kLarge);
  world.node().residuals->keep(kJob, "old", {layer_state("v", std::vector<float>(5000, 1))});
  const uint64_t held = world.held();
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  EXPECT_GT(world.held(), held + kWindow) << "what is known of the layers";
  EXPECT_LT(world.held(), held + kWindow + 2000) << "the residuals of the store's are shared";
  const uint64_t opened = world.held();
  world.node().residuals->take(kJob, "b1", gradient("b1", "v", 5000).layers).clear();
  EXPECT_EQ(world.held(), opened) << "what the store lets go of meanwhile, the save has";
  ASSERT_EQ(trainer.ask({{"type", "state_next"}})["type"], "state_part");
  EXPECT_GE(world.held(), opened - 5000 * sizeof(float) + kLarge * sizeof(float) - 2000) << "the copy";
  EXPECT_THAT(world.node().quotas->charge_bytes(7, uint64_t{1} << 60, "all").status().message(),
              HasSubstr("saving of compression states"));
  ASSERT_EQ(trainer.ask({{"type", "state_close"}})["type"], "ok");
  EXPECT_LE(world.held(), held + kWindow - 5000 * sizeof(float)) << "all is given back";

  for (const bool early : {false, true}) {
    ASSERT_EQ(trainer.open("save")["type"], "state_opened");
    if (early) {
      trainer.send({{"type", "state_next"}});  // it is under way
      for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(world.scheduler.step());
      }
    } else {
      ASSERT_EQ(trainer.ask({{"type", "state_next"}})["type"], "state_part");
      ASSERT_EQ(trainer.open("save")["type"], "state_opened") << "instead of the other";
    }
  }
  const int looks = world.engine().looks;
  trainer.die();
  EXPECT_LE(world.engine().looks, looks + 1) << "nobody wants it any more";
  EXPECT_EQ(world.held(), world.node().residuals->kept_bytes()) << "the bucket's own, after the failure";
}

TEST(StateTransfer, WhatIsKnownOfLayersIsChargedBeforeMoreIsAskedFor) {
  World world;
  Trainer trainer(world, 0);
  std::vector<std::pair<std::string, uint64_t>> layers;
  for (int i = 0; i < 2000; ++i) {
    layers.emplace_back("layer" + std::to_string(i), 1);
  }
  ASSERT_EQ(trainer.create("b0", layers)["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, 2000);
  const uint64_t held = world.held();
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  EXPECT_GE(world.held(), held + 2000 * sizeof(compress::LayerState));
  ASSERT_EQ(trainer.ask({{"type", "state_close"}})["type"], "ok");
  trainer.unmap();
  ASSERT_EQ(world.held(), held);
  world.limit(held + 700 * (sizeof(compress::LayerState) + 9));
  const int looks = world.engine().looks;
  const Json answer = trainer.open("save");
  EXPECT_EQ(answer["code"], "resource_exhausted") << answer;
  EXPECT_THAT(answer.value("message", ""), HasSubstr("what is known of the layers"));
  EXPECT_EQ(world.engine().looks, looks + 2) << "512 layers fit, 1,024 do not";
  EXPECT_EQ(world.held(), held);
}

TEST(StateTransfer, IsFreedInTheWorkshopBeforeTheEndIsAnswered) {
  World world;
  Trainer trainer(world, 0);
  ASSERT_EQ(trainer.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  operate(*world.engine().buckets.at(1)->reducer, kLarge);
  const uint64_t held = world.held();
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  ASSERT_EQ(trainer.ask({{"type", "state_next"}})["type"], "state_part");
  const uint64_t with_copy = world.held();
  world.nodes[0]->workshop->closed = true;
  trainer.send({{"type", "state_close"}});
  world.scheduler.settle();
  EXPECT_FALSE(trainer.answered());
  EXPECT_EQ(world.held(), with_copy) << "it is there, so it is charged";
  world.nodes[0]->workshop->open();
  EXPECT_EQ(world.held(), held + kWindow);
  world.scheduler.settle();
  EXPECT_TRUE(trainer.answered());
}

TEST(StateTransfer, HasWhatDestroyedBucketsBringBackWhileItIsSaved) {
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  create_on(world, {&zero, &one}, 300);
  operate(*world.engine().buckets.at(1)->reducer, 300);
  world.engine().busy_buckets.insert(1);  // its last messages are on their way
  ASSERT_EQ(zero.ask({{"type", "bucket_destroy"}, {"bucket", 1}})["type"], "ok");
  one.send({{"type", "bucket_destroy"}, {"bucket", 1}});
  zero.send({{"type", "state_open"}, {"direction", "save"}});
  world.scheduler.advance(milliseconds(50));
  EXPECT_FALSE(zero.answered()) << "its residuals are neither here nor there";
  world.engine().busy_buckets.clear();
  world.scheduler.advance(milliseconds(50));
  ASSERT_TRUE(zero.answered());
  ASSERT_EQ(zero.last()["type"], "state_opened") << zero.last();
  const Json part = zero.ask({{"type", "state_next"}});
  ASSERT_EQ(part["last"], true) << part;
  const auto bytes = zero.window().first(part["bytes"].get<size_t>());
  const auto sections = parsed(Bytes(bytes.begin(), bytes.end()));
  ASSERT_EQ(sections.size(), 1u);
  EXPECT_EQ(sections[0].bucket, "b0");
}

TEST(StateTransfer, DoesNotWaitForEverForABucketThatDoesNotComeBack) {
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  create_on(world, {&zero, &one});
  world.engine().busy_buckets.insert(1);
  ASSERT_EQ(zero.ask({{"type", "bucket_destroy"}, {"bucket", 1}})["type"], "ok");
  one.send({{"type", "bucket_destroy"}, {"bucket", 1}});
  zero.send({{"type", "state_open"}, {"direction", "save"}});
  world.scheduler.advance(seconds(12));
  ASSERT_TRUE(zero.answered());
  EXPECT_EQ(zero.last()["code"], "unavailable") << zero.last();
  EXPECT_THAT(zero.last()["message"].get<std::string>(), AllOf(HasSubstr("b0"), HasSubstr("within 11 s")));
}

TEST(StateTransfer, LoadsAfterWhatADestroyedBucketBringsBack) {
  const Bytes bytes = saved_sevens();
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  create_on(world, {&zero, &one}, 300);
  operate(*world.engine().buckets.at(1)->reducer, 300);
  world.engine().busy_buckets.insert(1);
  ASSERT_EQ(zero.ask({{"type", "bucket_destroy"}, {"bucket", 1}})["type"], "ok");
  one.send({{"type", "bucket_destroy"}, {"bucket", 1}});
  ASSERT_EQ(zero.open("load")["type"], "state_opened");
  std::copy(bytes.begin(), bytes.end(), zero.window().begin());
  zero.send({{"type", "state_put"}, {"bytes", bytes.size()}, {"last", true}});
  world.scheduler.advance(milliseconds(50));
  EXPECT_FALSE(zero.answered());
  world.engine().busy_buckets.clear();
  world.scheduler.advance(milliseconds(50));
  ASSERT_TRUE(zero.answered());
  EXPECT_EQ(zero.last()["type"], "ok") << zero.last();
  const auto sections = world.node().residuals->copy(kJob);
  ASSERT_EQ(sections.size(), 1u) << "what came back does not lie beside it";
  EXPECT_EQ(sections[0].bucket, "saved");
}

TEST(StateTransfer, ABucketThatIsGoneFromTheEngineIsNotLeftOut) {
  World world;
  Trainer trainer(world, 0);
  create_on(world, {&trainer});
  operate(*world.engine().buckets.at(1)->reducer, kLarge);
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  world.engine().buckets.clear();
  for (const Json& request :
       {Json{{"type", "state_next"}}, Json{{"type", "state_open"}, {"direction", "save"}}}) {
    const Json answer = trainer.ask(request);
    EXPECT_EQ(answer["code"], "unavailable") << answer;
    EXPECT_THAT(answer["message"].get<std::string>(),
                AllOf(HasSubstr("b0"), HasSubstr("gone from the engine")));
  }
}

TEST(StateTransfer, LargeBucketsAreCopiedOneAtATime) {
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  create_on(world, {&zero, &one});
  operate(*world.engine().buckets.at(1)->reducer, kLarge);
  const uint64_t held = world.held();
  for (Trainer* const trainer : {&zero, &one}) {
    ASSERT_EQ(trainer->open("save")["type"], "state_opened");
  }
  world.engine().most_looking = 0;
  for (Trainer* const trainer : {&zero, &one}) {
    trainer->send({{"type", "state_next"}});
  }
  world.scheduler.settle();
  for (Trainer* const trainer : {&zero, &one}) {
    ASSERT_TRUE(trainer->answered());
    EXPECT_EQ(trainer->last()["type"], "state_part") << trainer->last();
    EXPECT_EQ(trainer->ask({{"type", "state_close"}})["type"], "ok");
  }
  EXPECT_EQ(world.engine().most_looking, 1);
  EXPECT_EQ(world.held(), held + 2 * kWindow);
}

TEST(StateTransfer, OneThatDiesWhileItCopiesOrWaitsForItsTurnHoldsUpNobody) {
  for (const bool copying : {false, true}) {
    World world;
    Trainer zero(world, 0, 2);
    Trainer one(world, 1, 2);
    create_on(world, {&zero, &one});
    operate(*world.engine().buckets.at(1)->reducer, kLarge);
    for (Trainer* const trainer : {&zero, &one}) {
      ASSERT_EQ(trainer->open("save")["type"], "state_opened");
      trainer->send({{"type", "state_next"}});
    }
    for (int i = 0; i < 100 && world.engine().looking == 0; ++i) {
      ASSERT_TRUE(world.scheduler.step());
    }
    ASSERT_EQ(world.engine().looking, 1) << "zero's copy is under way";
    ASSERT_TRUE(world.node().copy_outs->taken());
    Trainer& victim = copying ? zero : one;
    Trainer& other = copying ? one : zero;
    victim.die();
    EXPECT_FALSE(world.node().copy_outs->taken());
    other.die();
    EXPECT_EQ(world.held(), world.node().residuals->kept_bytes());
  }
}

TEST(StateTransfer, AnotherReducerOfTheSameSizeIsNoticed) {
  World world;
  Trainer trainer(world, 0);
  create_on(world, {&trainer});
  auto& reducer = world.engine().buckets.at(1)->reducer;
  operate(*reducer, kLarge);
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  auto other = make_reducer(gradient("b0", "w", kLarge), {1, 0, 130'048}, [] {
    config::CompressionPolicy l8;
    l8.defaults.codec = "l8";
    return l8;
  }());
  ASSERT_TRUE(other.ok());
  operate(**other, kLarge);
  reducer.swap(*other);
  EXPECT_EQ(trainer.ask({{"type", "state_next"}})["code"], "unavailable");
}

TEST(StateTransfer, AStateIsLoadedThoughTheQuotaHoldsNotBothItAndWhatItReplaces) {
  World world;
  Trainer trainer(world, 0);
  world.node().residuals->keep(kJob, "old", {layer_state("w", std::vector<float>(kLarge, 1))});
  const Bytes bytes = trainer.save();
  world.limit(world.held() + kWindow + 5000);  // the window that is opened next
  EXPECT_EQ(trainer.load(bytes)["type"], "ok");
  EXPECT_LE(world.held(), world.quotas.bytes_per_user);
  EXPECT_EQ(trainer.load(bytes)["type"], "ok") << "again";
  EXPECT_EQ(world.node().residuals->copy(kJob).size(), 1u);
  world.limit(world.held() - 1000);
  const Json answer = trainer.load(bytes);
  EXPECT_EQ(answer["code"], "resource_exhausted") << answer;
  EXPECT_EQ(world.node().residuals->copy(kJob).size(), 1u);
}

}  // namespace
}  // namespace gradwire::control::testing
