// A trainer saves and loads its job's compression state, without sockets: windows, refusals, charges.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "compress/state_format.h"
#include "daemon/control/session.h"
#include "tests/control/epochs_fixture.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kLarge = 700'000;  // elements: three windows
constexpr uint64_t kWindow = 1U << 20;

// A cluster of one node whose policy compresses, and a trainer that speaks the protocol.
struct World : TestCluster {
  World() : TestCluster({"a"}) {
    config::CompressionPolicy l8;
    l8.defaults.codec = "l8";
    coordinator->set_policy(config::policy_to_json(l8));
  }
  NodeContext& node() { return *nodes[0]->context; }
  FakeEngine& engine() { return *nodes[0]->engine; }
  uint64_t held() { return node().quotas->held_bytes(7); }
  void limit(uint64_t bytes) {
    quotas.bytes_per_user = bytes;
    node().quotas->set_limits(quotas);
  }
};

class Trainer {
 public:
  Trainer(World& world, uint32_t rank, uint32_t ranks = 1)
      : world_(world),
        session_(
            std::make_shared<Session>(world.node(), *world.nodes[0]->members, 7, 1000,
                                      [this](const Json& document, const Session::Descriptors& descriptors) {
                                        heard_.push_back(document);
                                        if (document["type"] == "state_opened") {
                                          map(descriptors.at(0)->get(), document["window_bytes"]);
                                        }
                                      })) {
    ask({{"type", "join"},
         {"protocol", kTrainerProtocol},
         {"layout", 2},
         {"job", "job"},
         {"run_id", "0"},
         {"version", "0.1.0"},
         {"rank", rank},
         {"world", ranks},
         {"timeout_ms", 9000},
         {"fresh", false},
         {"rendezvous", "a:7470"}});
  }
  ~Trainer() { die(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void die() {
    if (session_) {
      std::exchange(session_, nullptr)->gone("died (pid 1000)");
      world_.scheduler.settle();
    }
    unmap();
  }
  // The answer, which must come without time passing; a join's may come when others have joined.
  Json ask(const Json& request) {
    send(request);
    world_.scheduler.settle();
    EXPECT_TRUE(answered() || request["type"] == "join") << "no answer to " << request;
    return answered() ? heard_.back() : Json();
  }
  void send(Json request) {
    request["id"] = ++id_;
    EXPECT_TRUE(session_->take(write_document(request)).ok());
  }
  // Whether the last request was.
  bool answered() const { return !heard_.empty() && heard_.back().value("id", uint64_t{0}) == id_; }
  const Json& last() const { return heard_.back(); }
  Json create(const std::string& name, const std::vector<std::pair<std::string, uint64_t>>& layers,
              uint32_t flags = kBucketGradient) {
    return ask(
        {{"type", "bucket_create"}, {"name", name}, {"dtype", 0}, {"flags", flags}, {"layers", layers}});
  }
  Json open(const char* direction) { return ask({{"type", "state_open"}, {"direction", direction}}); }
  std::span<std::byte> window() const { return window_; }

  Bytes save() {
    Bytes bytes;
    Json answer = open("save");
    EXPECT_EQ(answer["type"], "state_opened") << answer;
    for (bool last = answer["type"] != "state_opened"; !last;) {
      answer = ask({{"type", "state_next"}});
      if (answer["type"] != "state_part") {
        ADD_FAILURE() << answer;
        break;
      }
      const auto part = window_.first(answer["bytes"].get<size_t>());
      bytes.insert(bytes.end(), part.begin(), part.end());
      last = answer["last"];
      parts += 1;
    }
    return bytes;
  }
  Json load(std::span<const std::byte> bytes) {
    Json answer = open("load");
    for (size_t at = 0; answer["type"] == "state_opened" || answer["type"] == "ok";) {
      const size_t count = std::min(bytes.size() - at, window_.size());
      const auto part = bytes.subspan(at, count);
      std::copy(part.begin(), part.end(), window_.begin());
      at += count;
      const bool last = at == bytes.size();
      answer = ask({{"type", "state_put"}, {"bytes", count}, {"last", last}});
      if (last) {
        break;
      }
    }
    return answer;
  }

  void unmap() {
    if (!window_.empty()) {
      munmap(window_.data(), window_.size());
      window_ = {};
    }
  }

  int parts = 0;

 private:
  void map(int fd, size_t bytes) {
    unmap();
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(address, MAP_FAILED);
    window_ = {static_cast<std::byte*>(address), bytes};
  }
  World& world_;
  std::vector<Json> heard_;
  uint64_t id_ = 0;
  std::span<std::byte> window_;
  std::shared_ptr<Session> session_;
};

std::vector<compress::StateSection> parsed(const Bytes& bytes) {
  compress::StateReader reader;
  (void)reader.feed(bytes);
  const Status status = reader.finish();
  EXPECT_TRUE(status.ok()) << status.message();
  return reader.take();
}

const JobIdentity kJob{7, "job", "0"};

// One committed operation, as the engine would run it on a single node.
void operate(compress::BucketReducer& reducer, uint64_t elements) {
  const std::vector<float> gradient(elements, 0.3F);
  const std::vector<const void*> locals = {gradient.data()};
  ASSERT_TRUE(reducer.begin({}).ok());
  for (const compress::Segment& segment : reducer.geometry().segments(0)) {
    Bytes out(segment.max_bytes);
    ASSERT_TRUE(reducer.hop(segment, {}, locals, out.data()).ok());
  }
  reducer.commit();
}

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
  EXPECT_THAT(*sections[1].layers[0].residual, ElementsAre(1, 2, 3));
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
  EXPECT_EQ(*parsed(bytes).at(0).layers.at(0).residual, values);
  EXPECT_EQ(world.held(), held + kWindow) << "the copy is gone";
  World other;
  Trainer loading(other, 0);
  ASSERT_EQ(loading.load(bytes)["type"], "ok");
  ASSERT_EQ(loading.create("b0", {{"w", kLarge}})["type"], "bucket_created");
  EXPECT_EQ(other.engine().buckets.at(1)->reducer->residual()[kLarge - 1], values.back());
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
  EXPECT_THAT(*sections[0].layers[0].residual, ElementsAre(1, 2, 3));
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

// A bucket whose residual takes three windows, and rank 0 of those that have it.
void create_large(const std::vector<Trainer*>& trainers, const std::string& name = "b0") {
  for (Trainer* const trainer : trainers) {
    trainer->send({{"type", "bucket_create"},
                   {"name", name},
                   {"dtype", 0},
                   {"flags", kBucketGradient},
                   {"layers", Json::array({Json::array({"w", kLarge})})}});
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
  for (Trainer* const trainer : {&zero, &one}) {
    trainer->send({{"type", "bucket_create"},
                   {"name", "b0"},
                   {"dtype", 0},
                   {"flags", kBucketGradient},
                   {"layers", Json::array({Json::array({"w", 300})})}});
  }
  world.scheduler.settle();
  ASSERT_EQ(one.last()["type"], "bucket_created");
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
  create_large({&zero, &one});
  world.scheduler.settle();
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
  Bytes bytes;
  {
    World world;
    Trainer trainer(world, 0);
    world.node().residuals->keep(kJob, "saved", {layer_state("w", std::vector<float>(300, 7))});
    bytes = trainer.save();
  }
  World world;
  Trainer zero(world, 0, 2);
  Trainer one(world, 1, 2);
  for (Trainer* const trainer : {&zero, &one}) {
    trainer->send({{"type", "bucket_create"},
                   {"name", "b0"},
                   {"dtype", 0},
                   {"flags", kBucketGradient},
                   {"layers", Json::array({Json::array({"w", 300})})}});
  }
  world.scheduler.settle();
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
  create_large({&trainer});
  world.scheduler.settle();
  ASSERT_EQ(trainer.last()["type"], "bucket_created");
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
  create_large({&zero, &one});
  world.scheduler.settle();
  ASSERT_EQ(one.last()["type"], "bucket_created");
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
  // One that dies while it copies, or while it waits for its turn, holds up nobody.
  for (Trainer* const trainer : {&zero, &one}) {
    ASSERT_EQ(trainer->open("save")["type"], "state_opened");
    trainer->send({{"type", "state_next"}});
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(world.scheduler.step());
  }
  EXPECT_TRUE(world.node().copy_outs->taken());
  one.die();
  EXPECT_FALSE(world.node().copy_outs->taken());
  zero.die();
  EXPECT_EQ(world.held(), world.node().residuals->kept_bytes());
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
