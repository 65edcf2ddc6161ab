// What one trainer asks of its daemon, without the socket.
#include "daemon/control/session.h"

#include <gmock/gmock.h>

#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Talker {
  Talker(TestCluster& its_cluster, size_t node)
      : cluster(its_cluster),
        session(std::make_shared<Session>(
            *its_cluster.nodes[node]->context, *its_cluster.nodes[node]->members, 7, 1000,
            [this](const Json& document, const Session::Descriptors&) { heard.push_back(document); })) {}
  ~Talker() {
    session->gone("died (pid 1000)");
    cluster.scheduler.settle();
  }
  Talker(const Talker&) = delete;
  Talker& operator=(const Talker&) = delete;

  Status say(const std::string& text) {
    const Status status = session->take(text);
    cluster.scheduler.settle();
    return status;
  }
  void join(uint32_t rank, uint32_t world) {
    const Json request = {{"type", "join"},     {"id", 1},        {"protocol", kTrainerProtocol},
                          {"layout", 2},        {"job", "job"},   {"run_id", "0"},
                          {"version", "0.1.0"}, {"rank", rank},   {"world", world},
                          {"timeout_ms", 9000}, {"fresh", false}, {"rendezvous", "a:7470"}};
    EXPECT_TRUE(say(write_document(request)).ok());
  }

  TestCluster& cluster;
  std::vector<Json> heard;
  std::shared_ptr<Session> session;
};

std::string bucket_request(uint64_t id, size_t layers) {
  std::string text = R"({"type":"bucket_create","name":"wide","dtype":0,"flags":0,"layers":[["id",1])";
  for (size_t layer = 1; layer < layers; ++layer) {
    text += ",[\"" + std::to_string(layer) + "\",1]";
  }
  return text + "],\"id\":" + std::to_string(id) + "}";
}

TEST(Sessions, RefuseABucketOfTooManyLayersAndTheJobGoesOn) {
  TestCluster cluster({"a"});
  Talker trainer(cluster, 0);
  trainer.join(0, 1);
  ASSERT_EQ(trainer.heard.size(), 1u);
  ASSERT_EQ(trainer.heard[0]["type"], "joined") << trainer.heard[0];
  // More than may be, and so many that their document is not even built.
  uint64_t id = 1;
  for (const size_t layers : {kMaxLayers + 1, kMaxValues / 3 + 1}) {
    ASSERT_TRUE(trainer.say(bucket_request(++id, layers)).ok());
    const Json& answer = trainer.heard.back();
    EXPECT_EQ(answer["type"], "error");
    EXPECT_EQ(answer["code"], "invalid_argument");
    EXPECT_EQ(answer["id"], id);
    EXPECT_THAT(answer["message"].get<std::string>(), AllOf(HasSubstr("are possible"), HasSubstr("buckets")))
        << layers;
  }
  ASSERT_TRUE(trainer.say(bucket_request(++id, kMaxLayers)).ok());
  EXPECT_EQ(trainer.heard.back()["type"], "bucket_created") << trainer.heard.back();
}

TEST(Sessions, AreFreeToTheirUserWhenTheLeaveIsAnswered) {
  TestCluster cluster({"a"});
  config::QuotaOptions quotas;
  quotas.sessions_per_user = 1;
  cluster.nodes[0]->context->quotas = std::make_shared<QuotaLedger>(quotas);
  Talker trainer(cluster, 0);
  trainer.join(0, 1);
  ASSERT_EQ(trainer.heard.back()["type"], "joined") << trainer.heard.back();
  EXPECT_FALSE(trainer.session->without_job());
  Talker other(cluster, 0);
  other.join(0, 1);
  EXPECT_THAT(other.heard.back()["message"].get<std::string>(), HasSubstr("quotas.sessions_per_user is 1"));
  ASSERT_TRUE(trainer.say(R"({"type":"leave","id":2})").ok());
  ASSERT_EQ(trainer.heard.back()["type"], "ok") << trainer.heard.back();
  // The connection is still there; until it ends it counts with those that have not joined.
  EXPECT_TRUE(trainer.session->without_job());
  other.join(0, 1);
  EXPECT_EQ(other.heard.back()["type"], "joined") << other.heard.back();
}

TEST(Sessions, EndWhereNoDocumentIsSent) {
  TestCluster cluster({"a"});
  Talker trainer(cluster, 0);
  EXPECT_EQ(trainer.say("[1,2").code(), Code::kCorrupt);
  EXPECT_EQ(trainer.say(std::string(kMaxValues + 1, ',')).code(), Code::kInvalidArgument);
  EXPECT_TRUE(trainer.heard.empty());
}

}  // namespace
}  // namespace gradwire::control::testing
