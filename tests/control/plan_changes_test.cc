// The documents of plans, and what the coordinator makes of answers to a change.
#include <gmock/gmock.h>

#include "daemon/control/job_planner.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;

struct Changes {
  FakeScheduler scheduler;
  std::vector<Json> sent;
  std::vector<Status> over;
  PlanChanges changes{scheduler,
                      seconds(5),
                      2,
                      {[this](uint32_t node, const Json& document) {
                         if (node == 0) {
                           sent.push_back(document);
                         }
                       },
                       [this](uint32_t, const Plan&, const Status& status) { over.push_back(status); }}};
  Status say(uint32_t node, Json document) {
    const std::string type = document["type"];
    return changes.document(node, type, document);
  }
};

TEST(PlanChanges, TheHighestNumberThatIsNotBegunCounts) {
  Changes test;
  test.changes.begin(3, {});
  ASSERT_TRUE(test.say(0, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 9}}).ok());
  ASSERT_TRUE(test.say(1, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 4}}).ok());
  ASSERT_EQ(test.sent.size(), 2u);
  EXPECT_EQ(test.sent[1]["type"], "plan_commit");
  EXPECT_EQ(test.sent[1]["from"], 9);
  for (uint32_t node = 0; node < 2; ++node) {
    EXPECT_TRUE(test.changes.changing(3));
    ASSERT_TRUE(test.say(node, {{"type", "plan_changed"}, {"bucket", 3}, {"change", 1}}).ok());
  }
  EXPECT_EQ(test.sent[2]["type"], "plan_go");
  ASSERT_EQ(test.over.size(), 1u);
  EXPECT_TRUE(test.over[0].ok());
  EXPECT_EQ(test.scheduler.timers(), 0u);
}

TEST(PlanChanges, OddAnswersAreRefused) {
  Changes test;
  test.changes.begin(3, {});
  const auto code = [&test](const Json& document) { return test.say(0, document).code(); };
  EXPECT_EQ(code({{"type", "plan_held"}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 0}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", -1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 2}, {"next", 1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_changed"}, {"bucket", 3}, {"change", 1}}), Code::kCorrupt);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 4}, {"change", 1}, {"next", 1}}), Code::kOk);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}), Code::kOk);
  EXPECT_EQ(code({{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}), Code::kCorrupt);
}

TEST(PlanChanges, ARefusalOrSilenceCancels) {
  for (const bool silence : {false, true}) {
    Changes test;
    test.changes.begin(3, {});
    if (silence) {
      test.scheduler.advance(seconds(60));
      EXPECT_EQ(test.over.size(), 0u) << "nobody holds operations back while it is being built";
      ASSERT_TRUE(test.say(0, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}).ok());
      test.scheduler.advance(seconds(5));
    } else {
      ASSERT_TRUE(test.say(1, {{"type", "plan_failed"},
                               {"bucket", 3},
                               {"change", 1},
                               {"code", "resource_exhausted"},
                               {"message", "no memory"}})
                      .ok());
    }
    EXPECT_EQ(test.sent.back()["type"], "plan_cancel");
    ASSERT_EQ(test.over.size(), 1u);
    EXPECT_FALSE(test.over[0].ok());
    EXPECT_FALSE(test.changes.changing(3));
    EXPECT_TRUE(test.say(0, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}).ok());
    test.scheduler.settle();
  }
}

TEST(PlanChanges, ABucketThatIsGoneIsNotWaitedFor) {
  for (const bool committed : {false, true}) {
    Changes test;
    test.changes.begin(3, {});
    for (uint32_t node = 0; node < (committed ? 2 : 1); ++node) {
      ASSERT_TRUE(test.say(node, {{"type", "plan_held"}, {"bucket", 3}, {"change", 1}, {"next", 1}}).ok());
    }
    test.changes.forget(4);
    EXPECT_TRUE(test.changes.changing(3));
    test.changes.forget(3);
    EXPECT_FALSE(test.changes.any());
    EXPECT_EQ(test.sent.back()["type"], committed ? "plan_commit" : "plan_cancel");
    ASSERT_EQ(test.over.size(), 1u);
    EXPECT_EQ(test.over[0].code(), Code::kNotFound);
    EXPECT_TRUE(test.say(1, {{"type", "plan_changed"}, {"bucket", 3}, {"change", 1}}).ok()) << "it crossed";
    test.scheduler.settle();
    EXPECT_EQ(test.scheduler.timers(), 0u);
  }
}

TEST(Measured, ComesBackAsItWas) {
  Measured measured;
  measured.round = 3;
  measured.costs.link = {1, 2, 0.5, 8};
  measured.costs.codecs.resize(2);
  measured.costs.codecs[1].relay.unit_ns = 0.75;
  const Json document = *parse_document(write_document(measured_document(measured)));
  const Result<Measured> read = read_measured(document, 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->round, 3u);
  EXPECT_EQ(read->costs.link.byte_wire_ns, 8);
  EXPECT_EQ(read->costs.codecs[1].relay.unit_ns, 0.75);
  EXPECT_EQ(read_measured(document, 1).status().code(), Code::kCorrupt);
  EXPECT_EQ(read_measured(document, 3).status().code(), Code::kCorrupt);
}

TEST(Measured, WhatCannotBeIsRefused) {
  const Json good = measured_document({1, {}});
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, Json>>{{"round", 0},
                                                 {"link", {1, 2, 3}},
                                                 {"link", {1, 2, 3, -1}},
                                                 {"link", {1, 2, 3, "4"}},
                                                 {"exact", {1, 2, 3, 4, 5, 6, 7, 1e300}},
                                                 {"codecs", {{1}}},
                                                 {"codecs", 5}}) {
    Json bad = good;
    bad[name] = value;
    EXPECT_EQ(read_measured(bad, 0).status().code(), Code::kCorrupt) << name << " " << value;
  }
  EXPECT_TRUE(read_measured(good, 0).ok());
}

TEST(PlanDocument, OddPlansAreRefused) {
  const Json good = plan_to_json({engine::Algorithm::kDirect, "l8", 80'000, 5, 6});
  const auto status = [&good](const std::string& name, const Json& value) {
    Json document{{"type", "bucket_ok"}, {"plan", good}};
    document["plan"][name] = value;
    Fields fields(document);
    read_plan(fields, 130'048);
    return fields.status();
  };
  EXPECT_TRUE(status("algorithm", "ring").ok());
  for (const char* const name : {"algorithm", "codec", "segment", "expected_ns", "exact_ns"}) {
    Json document{{"plan", good}};
    document["plan"].erase(name);
    Fields fields(document);
    read_plan(fields, 130'048);
    EXPECT_THAT(fields.status().message(), HasSubstr(name)) << "left out";
  }
  EXPECT_THAT(status("algorithm", "tree").message(), HasSubstr("neither ring nor direct"));
  EXPECT_EQ(status("algorithm", 3).code(), Code::kCorrupt);
  for (const Json& document : {Json{{"plan", "ring"}}, Json::object()}) {
    Fields fields(document);
    read_plan(fields, 130'048);
    EXPECT_FALSE(fields.ok()) << document;
  }
  EXPECT_THAT(status("codec", "zip").message(), HasSubstr("'zip', which is no codec here"));
  EXPECT_EQ(status("segment", 1000).code(), Code::kCorrupt);
  EXPECT_EQ(status("segment", 200'000).code(), Code::kCorrupt);
  EXPECT_EQ(status("expected_ns", -1).code(), Code::kCorrupt);
  EXPECT_EQ(status("codec", 7).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace gradwire::control::testing
