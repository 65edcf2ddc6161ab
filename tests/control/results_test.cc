// Nodes whose results differ: found by the coordinator, told to all in one sentence.
#include <gmock/gmock.h>

#include "daemon/control/result_watch.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Results, ThatAreEqualOrOfOneNodeOnlyAreNoReasonToEnd) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  ranks[0]->member->engine_completed({{1, 1, 10}, {1, 2, 20}, {2, 1, 30}});
  ranks[2]->member->engine_completed({{1, 2, 20}, {7, 1, 5}});
  ranks[2]->member->engine_completed({{1, 1, 10}});
  ranks[2]->member->engine_completed({});
  cluster.scheduler.advance(seconds(5));
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->running()) << rank->failure().message();
  }
}

TEST(Results, ThatDifferEndTheJobWithBucketOperationAndBothNodes) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.create_on_all(ranks, {"b0", 0, 1, {{"w", 10}}});
  const uint32_t bucket = (*ranks[0]->bucket)->bucket;
  ranks[2]->member->engine_completed({{bucket, 16, 1}, {bucket, 17, 2}});
  ranks[0]->member->engine_completed({{bucket, 16, 1}, {bucket, 17, 3}});
  cluster.scheduler.settle();
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->failure().code(), Code::kCorrupt);
    EXPECT_THAT(
        rank->failure().message(),
        AllOf(HasSubstr("bucket 'b0' (1), operation 17: the result on node "),
              HasSubstr("node a (ranks 0,1)"), HasSubstr("node b (ranks 2,3)"), HasSubstr("checkpoint")));
    EXPECT_EQ(rank->failure().message(), ranks[0]->failure().message());
  }
  EXPECT_EQ(cluster.coordinator->jobs(), 0u);
  cluster.running_job();
}

TEST(Results, OfTheLastMomentAreComparedBeforeTheLeave) {
  TestCluster cluster({"a", "b"});
  const auto ranks = cluster.running_job();
  cluster.nodes[0]->engine->results = {{1, 5, 1}};
  cluster.nodes[1]->engine->results = {{1, 5, 2}};
  cluster.leave(ranks[1]);
  EXPECT_TRUE(ranks[0]->running());
  cluster.leave(ranks[3]);
  EXPECT_THAT(ranks[0]->failure().message(), HasSubstr("bucket 1, operation 5"));
}

TEST(Results, AreComparedWithinAnEpochOnly) {
  TestCluster cluster({"a", "b"});
  auto ranks = cluster.running_job();
  ranks[0]->member->engine_completed({{1, 1, 10}});
  cluster.scheduler.settle();
  ranks[0]->member->trainer_gone(0, "died (pid 1)");
  cluster.scheduler.settle();
  ranks = cluster.running_job();
  ranks[2]->member->engine_completed({{1, 1, 11}});
  cluster.scheduler.settle();
  EXPECT_TRUE(ranks[0]->running());
}

TEST(Results, ComeBackAsTheyWereAndOddOnesAreRefused) {
  const Results results = {{1, 17, 0x0123456789abcdef}, {UINT32_MAX, uint64_t{1} << 53, 0}};
  const Json document = results_document(results);
  for (const Json& each : {document, Json::parse(document.dump())}) {
    const auto read = read_results(each);
    ASSERT_TRUE(read.ok()) << read.status().message();
    ASSERT_EQ(read->size(), 2u);
    EXPECT_EQ(read->at(0).hash, results[0].hash);
    EXPECT_EQ(read->at(1).sequence, results[1].sequence);
  }
  const auto with = [](const char* text) {
    return read_results(Json{{"type", "beat"}, {"results", Json::parse(text)}});
  };
  EXPECT_TRUE(read_results(Json{{"type", "beat"}})->empty());
  EXPECT_TRUE(with(R"({"scheme":2,"samples":5})")->empty());
  for (const char* bad :
       {"5", "{}", R"({"scheme":0})", R"({"scheme":1})", R"({"scheme":1,"samples":{}})",
        R"({"scheme":1,"samples":[5]})", R"({"scheme":1,"samples":[[1,1]]})",
        R"({"scheme":1,"samples":[[0,1,"0123456789abcdef"]]})",
        R"({"scheme":1,"samples":[[1,0,"0123456789abcdef"]]})",
        R"({"scheme":1,"samples":[[4294967296,1,"0123456789abcdef"]]})",
        R"({"scheme":1,"samples":[[1,-1,"0123456789abcdef"]]})",
        R"({"scheme":1,"samples":[[1,1,"0123456789abcde"]]})",
        R"({"scheme":1,"samples":[[1,1,"0123456789abcdeg"]]})", R"({"scheme":1,"samples":[[1,1,5]]})"}) {
    EXPECT_EQ(with(bad).status().code(), Code::kCorrupt) << bad;
  }
  Json many = results_document(Results(engine::kMaxResultSamples, {1, 1, 1}));
  EXPECT_TRUE(read_results(many).ok());
  many = results_document(Results(engine::kMaxResultSamples + 1, {1, 1, 1}));
  EXPECT_FALSE(read_results(many).ok());
}

TEST(Results, ANodeIsNeverComparedWithItself) {
  ResultWatch watch;
  EXPECT_FALSE(watch.reported(0, {{1, 1, 10}, {1, 1, 11}}));
  EXPECT_FALSE(watch.reported(1, {{1, 1, 10}}));
  EXPECT_EQ(watch.compared(), 1u);
  const auto difference = watch.reported(2, {{1, 1, 11}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->node, 2u);
  EXPECT_EQ(difference->other, 0u);
}

TEST(Results, OfLongAgoAreForgotten) {
  ResultWatch watch;
  for (uint64_t sequence = 1; sequence <= ResultWatch::kWatched + 1; ++sequence) {
    EXPECT_FALSE(watch.reported(0, {{1, sequence, 10}}));
  }
  EXPECT_FALSE(watch.reported(1, {{1, 1, 11}}));
  EXPECT_TRUE(watch.reported(1, {{1, 3, 11}}));
}

}  // namespace
}  // namespace gradwire::control::testing
