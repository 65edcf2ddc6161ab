// Documents of hostile and clumsy writers.
#include <gmock/gmock.h>

#include "daemon/control/log.h"
#include "tests/control/fakes.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;

TEST(Documents, WhatIsNotAnObjectWithATypeIsRefused) {
  for (const char* text :
       {"", "x", "[]", "{}", "{\"type\":1}", "\"type\"", "{\"type\":\"a\"", "{\"type\":\"\xff\"}"}) {
    EXPECT_FALSE(parse_document(text).ok()) << text;
  }
  EXPECT_TRUE(parse_document("{\"type\":\"beat\"}").ok());
}

TEST(Documents, DeepNestingIsRefusedWithoutBuildingIt) {
  const std::string deep =
      "{\"type\":\"x\",\"a\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  const auto document = parse_document(deep);
  ASSERT_FALSE(document.ok());
  EXPECT_THAT(document.status().message(), HasSubstr("deeper than 16"));
}

TEST(Documents, NumbersTextsAndDigitsAreHeldToTheirRanges) {
  const Json document = {{"n", 5},         {"minus", -1}, {"float", 1.5},
                         {"text", "a\nb"}, {"hex", "0g"}, {"list", {1, "x"}}};
  const auto complaint = [&](auto access) {
    Fields fields(document);
    access(fields);
    return fields.status().message();
  };
  EXPECT_THAT(complaint([](Fields& f) { f.number("n", 6, 9); }),
              HasSubstr("'n' is not a whole number from 6 to 9"));
  EXPECT_THAT(complaint([](Fields& f) { f.number("minus", 0, 9); }), HasSubstr("'minus'"));
  EXPECT_THAT(complaint([](Fields& f) { f.number("float", 0, 9); }), HasSubstr("'float'"));
  EXPECT_THAT(complaint([](Fields& f) { f.number("none", 0, 9); }), HasSubstr("'none' is missing"));
  EXPECT_THAT(complaint([](Fields& f) { f.text("text", 0, 9); }), HasSubstr("control character"));
  for (const char* text : {"\xc2\x9b", "\xe2\x80\xa8", "\xe2\x80\xae", "\xd8\x9c", "\x7f"}) {
    const Json held = {{"text", text}};
    Fields fields(held);
    EXPECT_EQ(fields.text("text", 0, 9), "") << text;
    EXPECT_THAT(fields.status().message(), HasSubstr("control character")) << text;
  }
  EXPECT_THAT(complaint([](Fields& f) { f.text("n", 0, 9); }), HasSubstr("'n' is not a text"));
  EXPECT_THAT(complaint([](Fields& f) { f.hex("hex", 1, 9); }), HasSubstr("hex digits"));
  EXPECT_THAT(complaint([](Fields& f) { f.numbers("list", 9, 9); }), HasSubstr("'list'"));
  EXPECT_EQ(complaint([](Fields& f) { EXPECT_EQ(f.number("n", 0, 9), 5u); }), "");
}

TEST(Documents, AnEpochComesBackAsItWasAndABrokenOneIsRefused) {
  Epoch epoch;
  epoch.key = std::string(16, '\x80');
  epoch.counter = 3;
  epoch.world = 3;
  epoch.index = 1;
  epoch.max_payload = 130048;
  epoch.nodes = {{"a", std::string(16, 'x'), std::string("\0\xff", 2), "a:1", {"10.0.0.1", "::1"}, {0, 2}},
                 {"b", std::string(16, 'y'), "", "", {}, {1}}};
  epoch.past = Past{2, 1, {{"b", 3, 4, 2}, {"c", 0, 0, -1}}};
  // As a link inside the process has it, and as it was sent.
  for (const Json& document : {epoch_document(epoch), Json::parse(epoch_document(epoch).dump())}) {
    const auto with_past = read_epoch(document);
    ASSERT_TRUE(with_past.ok()) << with_past.status().message();
    EXPECT_EQ(with_past->past->buckets[0].highest_rank, 2);
    EXPECT_EQ(with_past->past->buckets[1].highest_rank, -1);
  }
  const auto read = read_epoch(epoch_document(epoch));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->nodes[0].transport_address, epoch.nodes[0].transport_address);
  EXPECT_EQ(read->key, epoch.key);
  EXPECT_EQ(read->nodes[0].ranks, epoch.nodes[0].ranks);
  epoch.nodes[1].ranks = {2};
  EXPECT_FALSE(read_epoch(epoch_document(epoch)).ok());
  epoch.nodes[1].ranks = {1};
  epoch.index = 2;
  EXPECT_FALSE(read_epoch(epoch_document(epoch)).ok());
}

TEST(Documents, LongNamesLeaveRoomInSentences) {
  std::string name;
  while (name.size() < kMaxBucketName) {
    name += "\u00e9";
  }
  EXPECT_EQ(bucket_text("b0"), "bucket 'b0'");
  EXPECT_EQ(bucket_text(name), "bucket '" + name.substr(0, 100) + "'");
  EXPECT_EQ(bucket_text("x" + name), "bucket 'x" + name.substr(0, 98) + "'");  // no half character
}

TEST(Documents, AddressesOfTheDataPathMustBeNumeric) {
  NodeInfo node;
  node.name = "a";
  node.instance = std::string(16, 'x');
  node.version = node.transport = "1";
  node.max_payload = 130048;
  node.peer_timeout_ms = node.operation_timeout_ms = 1;
  const auto with = [&node](std::vector<std::string> hosts) {
    node.data_hosts = std::move(hosts);
    return read_hello(hello_document(node, nullptr));
  };
  EXPECT_EQ(with({"10.0.0.1", "fe80::1"})->data_hosts.size(), 2u);
  EXPECT_TRUE(with({}).ok());
  EXPECT_TRUE(with(std::vector<std::string>(64, "10.0.0.1")).ok());
  EXPECT_FALSE(with(std::vector<std::string>(65, "10.0.0.1")).ok());
  for (const char* host : {"", "a.example", "10.0.0", "10.0.0.1:80", "10.0.0.1 "}) {
    EXPECT_FALSE(with({host}).ok()) << host;
  }
  // Of another protocol only what every version has is read: its sentence is about versions.
  Json old = hello_document(node, nullptr);
  old["protocol"] = 1;
  old.erase("data_hosts");
  EXPECT_TRUE(read_hello(old).ok());
}

TEST(Documents, APastComesBackAsItWasAndABrokenOneIsRefused) {
  Past past;
  past.epoch = 3;
  past.buckets = {{"b0", 16, 17, 2}, {"b1", 0, 0, -1}};
  Epoch epoch;
  epoch.key = std::string(16, 'k');
  epoch.counter = 4;
  epoch.world = 3;
  epoch.max_payload = 130048;
  epoch.nodes = {{"a", std::string(16, 'x'), "", "", {}, {0, 1, 2}}};
  epoch.past = past;
  const Json document = epoch_document(epoch);
  const auto read = read_epoch(document);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->past->buckets[0].highest, 17u);
  EXPECT_EQ(read->past->buckets[1].highest_rank, -1);
  const auto with = [&document](const Json& buckets) {
    Json changed = document;
    changed["past"]["buckets"] = buckets;
    return read_epoch(changed).ok();
  };
  EXPECT_TRUE(with(Json::array()));
  for (const char* bad :
       {R"([["b",2,1,0]])", R"([["b",1,1]])", R"([["b",-1,1,0]])", R"([["b",1,1,-2]])", R"([["b",1,1,3]])",
        R"([["",1,1,0]])", R"([["b",1,1,0],["a",1,1,0]])", R"([5])", "{}"}) {
    EXPECT_FALSE(with(Json::parse(bad))) << bad;
  }
  const auto said = read_node_past(node_past_document(past));
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->buckets[0].lowest, 17u);
  EXPECT_FALSE(read_node_past(Json{{"type", "past"}, {"epoch", 0}, {"buckets", Json::array()}}).ok());
  const Json turned = Json::array({"b\xe2\x80\xae", uint64_t{17}});
  EXPECT_FALSE(read_node_past(Json{{"type", "past"}, {"epoch", 1}, {"buckets", Json::array({turned})}}).ok());
}

TEST(Documents, AFailureKeepsItsCodeAndLosesControlCharacters) {
  const Status read = read_failure(failure_document("abort", Status(Code::kMismatch, "a\nb")));
  EXPECT_EQ(read.code(), Code::kMismatch);
  EXPECT_EQ(read.message(), "a b");
  EXPECT_EQ(clean("gr\xc3\xbcn\xc2\x9b"
                  "31m\xe2\x80\xae",
                  99),
            "gr\xc3\xbcn 31m ");
  EXPECT_EQ(clean("gr\xc3\xbcn", 3), "gr");
  EXPECT_EQ(read_failure(Json{{"type", "abort"}, {"code", 7}}).code(), Code::kAborted);
}

TEST(Documents, LogLinesAreOneLineEach) {
  EXPECT_EQ(format_event("x", {{"a", "1"}, {"b", "two \"words\"\n"}, {"c", ""}}),
            "event=x a=1 b=\"two \\\"words\\\"\\n\" c=\"\"");
}

TEST(Manifests, AreCheckedInEveryMember) {
  Json document;
  write_manifest({"b", 0, 1, {{"w", 5}}}, &document);
  EXPECT_TRUE(read_manifest(document).ok());
  const auto with = [&](const char* member, const Json& value) {
    Json changed = document;
    changed[member] = value;
    return read_manifest(changed).status().code();
  };
  EXPECT_EQ(with("dtype", 7), Code::kInvalidArgument);
  EXPECT_EQ(with("flags", 2), Code::kInvalidArgument);
  EXPECT_EQ(with("name", ""), Code::kInvalidArgument);
  EXPECT_EQ(with("layers", 5), Code::kInvalidArgument);
  EXPECT_EQ(with("name", "b\xc2\x9b"), Code::kInvalidArgument);
  const auto named = [&](const char* layer) {
    return with("layers", Json::array({Json::array({layer, uint64_t{1}})}));
  };
  EXPECT_EQ(named(""), Code::kInvalidArgument);
  EXPECT_EQ(named("a\xc2\x9b"
                  "b"),
            Code::kInvalidArgument);
  EXPECT_EQ(named("gr\xc3\xbcn"), Code::kOk);
  document["layers"] = 5;
  EXPECT_THAT(read_manifest(document).status().message(), HasSubstr("at most 300000 entries"));
  document["layers"] = Json::array({Json::array({"w", 5})});
  EXPECT_EQ(with("layers", Json::array({Json::array({"w"})})), Code::kInvalidArgument);
  EXPECT_EQ(with("layers", Json::array({Json::array({"w", -1})})), Code::kInvalidArgument);
  EXPECT_EQ(with("layers", Json::array({Json::array({"w", 1}), Json::array({"w", 1})})),
            Code::kInvalidArgument);
  EXPECT_EQ(with("layers", Json::array({Json::array({"v", uint64_t{1} << 40}), Json::array({"w", 1})})),
            Code::kInvalidArgument);
  EXPECT_EQ(with("layers", Json::array()), Code::kOk);
}

// A link that a test speaks into by hand.
struct RawLink {
  explicit RawLink(TestCluster& its_cluster) : cluster(its_cluster) {
    auto [ours, theirs] = make_local_links(cluster.scheduler);
    link = ours;
    link->start([this](const Json& document) { received.push_back(document); },
                [this](const Status&) { closed = true; });
    cluster.coordinator->accept(theirs);
  }
  ~RawLink() { link->close(); }
  void say(const Json& document) {
    link->send(document);
    cluster.scheduler.settle();
  }
  void greet() {
    const JobIdentity job{7, "job", "0"};
    say(hello_document(cluster.nodes[1]->context->self, &job));
  }
  TestCluster& cluster;
  LinkPtr link;
  std::vector<Json> received;
  bool closed = false;
};

TEST(HostilePeers, AreRefusedWithASentenceAndNothingElseHappens) {
  TestCluster cluster({"a", "b"});
  const std::vector<Json> before_hello = {{{"type", "join"}},
                                          {{"type", "nonsense"}},
                                          {{"type", "hello"}},
                                          {{"type", "hello"}, {"protocol", "x"}}};
  for (const Json& document : before_hello) {
    RawLink raw(cluster);
    raw.say(document);
    EXPECT_TRUE(raw.closed) << document;
    EXPECT_EQ(raw.received.back()["type"], "error") << document;
  }
  const std::vector<Json> after_hello = {{{"type", "join"}, {"rank", -1}},
                                         {{"type", "ready"}},
                                         {{"type", "bucket"}, {"rank", 0}},
                                         {{"type", "misses"}},
                                         {{"type", "leave"}, {"rank", 0}, {"last", Json::array()}},
                                         {{"type", "nonsense"}}};
  for (const Json& document : after_hello) {
    RawLink raw(cluster);
    raw.greet();
    raw.say(document);
    EXPECT_TRUE(raw.closed) << document;
  }
  EXPECT_EQ(cluster.coordinator->members(), 0u);
  EXPECT_EQ(cluster.coordinator->jobs(), 0u);
}

TEST(HostilePeers, CannotSpeakForOthersRanksAndEndTheirOwnJobOnly) {
  TestCluster cluster({"a", "b"});
  const auto bystander = cluster.join(0, 0, 1, "other");
  const auto zero = cluster.join(0, 0, 2);
  RawLink raw(cluster);
  raw.greet();
  raw.say(join_document({1, 2, 5, 60000, 0}));
  raw.say({{"type", "ready"}});
  ASSERT_TRUE(zero->running());
  for (const Json& odd :
       {Json{{"type", "bucket_ready"}, {"bucket", 99}}, Json{{"type", "bucket_failed"}, {"bucket", 99}},
        Json{{"type", "misses"}, {"query", 5}, {"missing", {1}}, {"phase", ""}}}) {
    raw.say(odd);
    EXPECT_FALSE(raw.closed) << odd;
  }
  raw.say({{"type", "leave"}, {"rank", 0}, {"last", Json::array()}});
  EXPECT_TRUE(raw.closed);
  EXPECT_THAT(zero->failure().message(), HasSubstr("node b (rank 1) is gone"));
  EXPECT_TRUE(bystander->running());
}

TEST(HostilePeers, WhoSaysNothingIsClosedAfterAWhile) {
  TestCluster cluster({"a", "b"});
  RawLink raw(cluster);
  cluster.scheduler.advance(seconds(6));
  EXPECT_TRUE(raw.closed);
  EXPECT_EQ(cluster.scheduler.timers(), 0u);
}

}  // namespace
}  // namespace gradwire::control::testing
