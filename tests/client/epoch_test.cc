// What a joined answer says of the job's epochs, and answers of other versions.
#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

using nlohmann::json;

Behaviour with(const std::function<void(json*)>& edit) {
  Behaviour behaviour;
  behaviour.edit_joined = edit;
  return behaviour;
}

Attempt try_join(const std::function<void(json*)>& edit, size_t descriptors = 2) {
  Behaviour behaviour = with(edit);
  behaviour.descriptors = descriptors;
  FakeDaemon daemon(behaviour);
  const gw_join_options options = options_for(daemon);
  gw_job* job = nullptr;
  const gw_status status = gw_join(&options, &job);
  return {status == GW_OK ? gw_leave(job) : status, gw_last_error()};
}

gw_progress progress_of(const gw_job* job, const char* bucket, gw_status expected = GW_OK) {
  gw_progress progress{};
  progress.struct_size = sizeof(progress);
  EXPECT_EQ(gw_previous_epoch(job, bucket, &progress), expected) << gw_last_error();
  return progress;
}

TEST(Epoch, TheFirstHasNoneBeforeIt) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  EXPECT_EQ(gw_epoch(job), 1u);
  progress_of(job, "b0", GW_ERR_NOT_FOUND);
  EXPECT_NE(last_error().find("epoch 1"), std::string::npos) << gw_last_error();
  EXPECT_EQ(daemon.last_join()["fresh"], false);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Epoch, ALaterOneKnowsHowFarTheOneBeforeCame) {
  FakeDaemon daemon(with([](json* joined) {
    (*joined)["epoch"] = 3;
    (*joined)["past"] = {{"epoch", 2},
                         {"unknown_nodes", 1},
                         {"buckets", {{"b0", 16, 17, 0}, {"b1", 0, 5, -1, "of the future"}}},
                         {"more", "of the future"}};
    (*joined)["more"] = {1, 2};
  }));
  gw_join_options options = options_for(daemon);
  options.flags = GW_JOIN_FRESH;
  gw_job* job = nullptr;
  ASSERT_EQ(gw_join(&options, &job), GW_OK) << gw_last_error();
  EXPECT_EQ(daemon.last_join()["fresh"], true);
  EXPECT_EQ(gw_epoch(job), 3u);
  const gw_progress first = progress_of(job, "b0");
  EXPECT_EQ(first.epoch, 2u);
  EXPECT_EQ(first.lowest, 16u);
  EXPECT_EQ(first.highest, 17u);
  EXPECT_EQ(first.highest_rank, 0);
  EXPECT_EQ(first.unknown_nodes, 1u);
  EXPECT_EQ(progress_of(job, "b1").highest_rank, -1);
  progress_of(job, "b2", GW_ERR_NOT_FOUND);
  EXPECT_NE(last_error().find("b2"), std::string::npos) << gw_last_error();
  EXPECT_EQ(gw_previous_epoch(job, nullptr, nullptr), GW_ERR_INVALID);
  gw_progress shorter{};
  shorter.struct_size = offsetof(gw_progress, highest_rank);
  shorter.highest_rank = 99;
  EXPECT_EQ(gw_previous_epoch(job, "b0", &shorter), GW_OK);
  EXPECT_EQ(shorter.highest, 17u);
  EXPECT_EQ(shorter.highest_rank, 99);
  EXPECT_EQ(gw_leave(job), GW_OK);
}

TEST(Epoch, APastThatMakesNoSenseIsRefused) {
  const json good{{"epoch", 1}, {"unknown_nodes", 0}, {"buckets", {{"b0", 1, 2, 0}}}};
  const auto attempt = [](const json& past) {
    return try_join([&past](json* joined) {
      (*joined)["epoch"] = 2;
      (*joined)["past"] = past;
    });
  };
  EXPECT_EQ(attempt(good).status, GW_OK) << gw_last_error();
  for (const char* bad :
       {R"([])", R"(null)", R"({"epoch":0})", R"({"epoch":2})", R"({"epoch":-1})", R"({"epoch":"1"})",
        R"({"unknown_nodes":2})", R"({"unknown_nodes":-1})", R"({"buckets":{}})", R"({"buckets":[7]})",
        R"({"buckets":[["b",1,2]]})", R"({"buckets":[["b",2,1,0]]})", R"({"buckets":[["b",-1,1,0]]})",
        R"({"buckets":[["b",1,1,1]]})", R"({"buckets":[["b",1,1,-2]]})", R"({"buckets":[["b",1,1,0.5]]})",
        R"({"buckets":[[5,1,1,0]]})", R"({"buckets":[["b",1,1,0],["b",1,1,0]]})",
        R"({"buckets":[["b",1,1,18446744073709551615]]})"}) {
    json past = json::parse(bad);
    if (past.is_object()) {
      json whole = good;
      whole.update(past);
      past = whole;
    }
    expect(attempt(past), GW_ERR_PROTOCOL, "\"past\"");
  }
}

TEST(Versions, AnOlderDaemonIsToBeUpdated) {
  // Layout 1 came with three descriptors and without an epoch.
  expect(try_join(
             [](json* joined) {
               (*joined)["layout"] = 1;
               (*joined)["version"] = "0.0.9";
               joined->erase("epoch");
             },
             3),
         GW_ERR_PROTOCOL, "gradwired 0.0.9 uses layout 1");
  EXPECT_NE(last_error().find(gw_version()), std::string::npos) << gw_last_error();
  EXPECT_NE(last_error().find("update gradwired on this node"), std::string::npos) << gw_last_error();
}

TEST(Versions, ANewerDaemonNeedsANewerLibrary) {
  expect(try_join([](json* joined) { (*joined)["layout"] = 3; }), GW_ERR_PROTOCOL,
         "update the libgradwire that this program uses");
  EXPECT_NE(last_error().find("gradwired 9.9.9 uses layout 3"), std::string::npos) << gw_last_error();
}

TEST(Versions, AnAnswerThatLacksAMemberNamesItAndBothVersions) {
  for (const char* member :
       {"epoch", "session_bytes", "peer_timeout_ms", "operation_timeout_ms", "local_ranks", "layout"}) {
    expect(try_join([member](json* joined) {
             joined->erase(member);
             (*joined)["version"] = "0.0.9";
           }),
           GW_ERR_PROTOCOL, member);
    EXPECT_NE(last_error().find("gradwired 0.0.9"), std::string::npos) << gw_last_error();
    EXPECT_NE(last_error().find(gw_version()), std::string::npos) << gw_last_error();
    EXPECT_NE(last_error().find("update gradwired"), std::string::npos) << gw_last_error();
  }
  expect(try_join([](json* joined) { joined->erase("version"); }), GW_ERR_PROTOCOL, "of unknown version");
  expect(try_join([](json* joined) {
           (*joined)["version"] = "9.0";
           joined->erase("epoch");
         }),
         GW_ERR_PROTOCOL, "update the libgradwire");
}

TEST(Versions, ARefusalOfTheWholeProtocolNamesTheLibrary) {
  Behaviour behaviour;
  behaviour.join_refusal = json{
      {"type", "error"}, {"code", "unsupported"}, {"message", "protocol 2 is unknown to gradwired 0.0.9"}};
  FakeDaemon daemon(behaviour);
  const gw_join_options options = options_for(daemon);
  gw_job* job = nullptr;
  expect({gw_join(&options, &job), gw_last_error()}, GW_ERR_UNSUPPORTED, "gradwired 0.0.9");
  EXPECT_NE(last_error().find(std::string("libgradwire ") + gw_version()), std::string::npos)
      << gw_last_error();
}

TEST(Versions, ABellThatIsNoSocketIsRefused) {
  Behaviour behaviour;
  behaviour.bell_is_a_pipe = true;
  FakeDaemon daemon(behaviour);
  const gw_join_options options = options_for(daemon);
  gw_job* job = nullptr;
  expect({gw_join(&options, &job), gw_last_error()}, GW_ERR_PROTOCOL, "bell");
}

}  // namespace
}  // namespace gradwire::client
