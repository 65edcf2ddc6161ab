// A trainer saves and loads its job's compression state, without sockets: windows, refusals, charges.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>

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
  // The last answer.
  Json ask(Json request) {
    request["id"] = ++id_;
    EXPECT_TRUE(session_->take(write_document(request)).ok());
    world_.scheduler.settle();
    EXPECT_TRUE(heard_.empty() || heard_.back().value("id", uint64_t{0}) == id_ || request["type"] == "join")
        << "no answer to " << request;
    return heard_.empty() ? Json() : heard_.back();
  }
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
  trainer.die();
  EXPECT_LE(world.held(), held) << "the copy is gone";
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
  ASSERT_EQ(trainer.open("load")["type"], "state_opened");
  EXPECT_EQ(trainer.ask({{"type", "state_next"}})["type"], "error") << "the other direction";
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", (1U << 20) + 1}, {"last", false}})["type"],
            "error");
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", -1}, {"last", false}})["type"], "error");
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", 1U << 20}, {"last", false}})["type"], "error")
      << "zeros are no state";
  ASSERT_EQ(trainer.open("save")["type"], "state_opened");
  ASSERT_EQ(trainer.open("load")["type"], "state_opened") << "instead of the other";
  EXPECT_EQ(trainer.ask({{"type", "state_close"}})["type"], "ok");
  EXPECT_EQ(trainer.ask({{"type", "state_put"}, {"bytes", 0}, {"last", true}})["type"], "error");
  ASSERT_EQ(trainer.open("load")["type"], "state_opened");
  trainer.die();
  EXPECT_EQ(world.held(), 0u);
}

}  // namespace
}  // namespace gradwire::control::testing
