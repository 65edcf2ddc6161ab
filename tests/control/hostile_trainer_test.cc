// Trainers that lie, flood, sleep and cut, against a real daemon, while another job on it goes on.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "daemon/control/local_server.h"
#include "tests/control/good_job.h"
#include "tests/control/raw_trainer.h"

namespace gradwire::control::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class HostileTrainer : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.ready()) << daemon_.log();
    good_.emplace(std::vector<std::string>{daemon_.socket, daemon_.socket}, "", root_.path() + "/stop");
    ASSERT_TRUE(good_->advances()) << daemon_.log();
    descriptors_ = open_descriptors(daemon_.process.pid());
  }
  void TearDown() override {
    if (good_) {
      EXPECT_TRUE(good_->advances());
      EXPECT_TRUE(eventually([&] { return open_descriptors(daemon_.process.pid()) <= descriptors_; }))
          << open_descriptors(daemon_.process.pid()) << " descriptors are open, " << descriptors_
          << " were at first";
      EXPECT_EQ(good_->finish(), "");
    }
    EXPECT_FALSE(daemon_.process.wait(milliseconds(0))) << "the daemon has ended";
    if (HasFailure()) {
      std::fputs(daemon_.log().c_str(), stderr);
    }
  }

  TemporaryDirectory root_;
  DaemonProcess daemon_{root_.path(), "a", {}};
  std::optional<GoodJob> good_;
  size_t descriptors_ = 0;
};

TEST_F(HostileTrainer, ThatSendsAnythingIsRefusedWithASentence) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    RawTrainer trainer(daemon_.socket);
    std::string bytes(1 + random() % 3000, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    trainer.send_bytes(i % 2 == 0 ? bytes : wire::encode_frame(bytes));
    EXPECT_TRUE(i % 2 == 0 || is_error(trainer.receive()));
  }
  RawTrainer trainer(daemon_.socket);
  for (const char* type : {"bucket_create", "bucket_destroy", "traffic", "leave", "joined", "", "\x01"}) {
    EXPECT_TRUE(is_error(trainer.ask({{"type", type}, {"id", 1}}))) << type;
  }
  EXPECT_TRUE(is_error(trainer.ask({{"type", "join"}})));
  const Json odd[] = {nullptr,
                      true,
                      -1,
                      1e300,
                      uint64_t{1} << 63,
                      "",
                      std::string(5000, 'x'),
                      Json::array(),
                      Json::object(),
                      {{"a", 1}},
                      {1, 2, 3},
                      "\x7f",
                      "a:0",
                      "[",
                      0xffffffffu};
  // What is odd and allowed all the same.
  const std::map<std::string, std::vector<Json>> fine = {{"version", {"", "a:0", "["}},
                                                         {"job", {"a:0", "["}},
                                                         {"run_id", {"", "a:0", "["}},
                                                         {"timeout_ms", {0xffffffffu}}};
  int number = 0;
  for (const char* name : {"protocol", "layout", "version", "job", "run_id", "rank", "world", "timeout_ms"}) {
    for (const Json& value : odd) {
      RawTrainer each(daemon_.socket);
      Json join = join_request("bad" + std::to_string(++number));
      join[name] = value;
      const auto answer = each.ask(join);
      ASSERT_TRUE(answer) << name << ' ' << value;
      const auto allowed = fine.find(name);
      if (allowed != fine.end() && std::ranges::count(allowed->second, value) != 0) {
        EXPECT_EQ((*answer)["type"], "joined") << name << ' ' << value << ' ' << *answer;
      } else {
        EXPECT_TRUE(is_error(answer)) << name << ' ' << value << ' ' << *answer;
      }
    }
  }
}

TEST_F(HostileTrainer, OfAnotherVersionIsToldWhichSideToUpdate) {
  for (const auto& [protocol, layout, side] :
       {std::tuple(1, 1, "update the trainer's libgradwire"), std::tuple(2, 1, "update the trainer's"),
        std::tuple(3, 2, "update gradwired"), std::tuple(2, 3, "update gradwired")}) {
    RawTrainer trainer(daemon_.socket);
    const auto answer = trainer.ask(
        {{"type", "join"}, {"id", 1}, {"protocol", protocol}, {"layout", layout}, {"version", "9.9.9"}});
    ASSERT_TRUE(is_error(answer));
    EXPECT_EQ((*answer)["code"], "unsupported");
    EXPECT_THAT((*answer)["message"].get<std::string>(), HasSubstr(side));
    EXPECT_THAT((*answer)["message"].get<std::string>(), HasSubstr("libgradwire 9.9.9"));
  }
}

TEST_F(HostileTrainer, ThatHasJoinedCanOnlyHarmItself) {
  RawTrainer trainer(daemon_.socket);
  const std::string join = wire::encode_frame(join_request("evil").dump());
  trainer.send_bytes(join, 1);  // byte by byte is a document too
  const auto joined = trainer.receive();
  ASSERT_TRUE(joined);
  ASSERT_EQ((*joined)["type"], "joined") << *joined;
  EXPECT_EQ((*joined)["epoch"], 1);
  EXPECT_EQ(trainer.descriptors.size(), 2u);
  EXPECT_TRUE(is_error(trainer.ask(join_request("evil"))));
  const Json layer = {"w", 10};
  for (const Json& bucket : std::vector<Json>{
           {{"name", "x"}},
           {{"name", ""}, {"dtype", 0}, {"flags", 0}, {"layers", {layer}}},
           {{"name", "x"}, {"dtype", 99}, {"flags", 0}, {"layers", {layer}}},
           {{"name", "x"}, {"dtype", 0}, {"flags", 0}, {"layers", {1, 2}}},
           {{"name", "x"}, {"dtype", 0}, {"flags", 0}, {"layers", {{"w", -1}}}},
           {{"name", "x"}, {"dtype", 0}, {"flags", 0}, {"layers", {{"w", 1ull << 62}}}},
           {{"name", "x"}, {"dtype", 0}, {"flags", 0}, {"layers", {{"w", 1ull << 39}}}},
           {{"name", std::string(1000, 'n')}, {"dtype", 0}, {"flags", 0}, {"layers", {layer}}}}) {
    Json request = bucket;
    request["type"] = "bucket_create";
    request["id"] = 2;
    EXPECT_TRUE(is_error(trainer.ask(request))) << bucket.dump().substr(0, 200);
  }
  for (const Json& bucket : std::vector<Json>{0, 1, 77, -1, "b0", 4294967296}) {
    EXPECT_TRUE(is_error(trainer.ask({{"type", "bucket_destroy"}, {"id", 3}, {"bucket", bucket}})));
  }
  // Nothing but brackets, as much of them as a document may hold.
  std::string brackets = R"({"type":"traffic","id":4,"x":[)";
  while (brackets.size() < (size_t{4} << 20)) {
    brackets += "{},";
  }
  brackets += "0]}";
  trainer.send_bytes(wire::encode_frame(brackets));
  EXPECT_TRUE(is_error(trainer.receive(10'000))) << "too much costs the request, not the connection";
  EXPECT_EQ((*trainer.ask({{"type", "traffic"}, {"id", 5}}))["type"], "traffic");
  trainer.send_bytes(wire::encode_frame(std::string(size_t{4} << 20, '[')));
  EXPECT_TRUE(is_error(trainer.receive(10'000)));
  EXPECT_TRUE(trainer.is_closed());
}

TEST_F(HostileTrainer, ThatConnectsThousandsOfTimesKeepsNobodyOut) {
  std::vector<RawTrainer> crowd;
  for (int i = 0; i < 1500; ++i) {
    crowd.emplace_back(daemon_.socket);
    if (i % 3 == 0) {
      crowd.back().send_bytes(std::string("\x40\0\0\0{", 5));
    }
    if (crowd.size() == 300) {  // no more descriptors here than a process usually has
      crowd.erase(crowd.begin(), crowd.begin() + 10);
    }
  }
  RawTrainer honest(daemon_.socket);
  const auto joined = honest.ask(join_request("honest"));
  ASSERT_TRUE(joined);
  EXPECT_EQ((*joined)["type"], "joined");
  // A connection and its process are two. What has ended is closed by a few threads, which may be behind.
  const auto open_now = [this] { return open_descriptors(daemon_.process.pid()); };
  const size_t let_stay = descriptors_ + 2 * kMaxUnjoinedPerUser + 20;
  EXPECT_LT(open_now(), let_stay + kMaxClosing);
  EXPECT_TRUE(eventually([&] { return open_now() < let_stay; }, seconds(8))) << open_now();
}

TEST_F(HostileTrainer, ThatSendsDescriptorsOrLongDocumentsGetsRidOfNone) {
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::vector<int> eight(8, file);
  for (int i = 0; i < 20; ++i) {
    RawTrainer trainer(daemon_.socket);
    for (int k = 0; k < 20; ++k) {
      (void)wire::send_some(trainer.fd(), std::string("\xff\0\0\0{", 5).substr(k == 0 ? 0 : 4), eight);
    }
  }
  close(file);
  for (const size_t size : {size_t{70} << 10, size_t{15} << 20}) {
    RawTrainer trainer(daemon_.socket);
    trainer.send_bytes(wire::encode_frame("{\"type\":\"x\",\"a\":\"" + std::string(size, 'a') + "\"}"));
    EXPECT_TRUE(trainer.is_closed());
  }
  for (const char* length : {"\0\0\0\0", "\xff\xff\xff\xff", "\1\0\0\1"}) {
    RawTrainer trainer(daemon_.socket);
    trainer.send_bytes(std::string_view(length, 4));
    EXPECT_TRUE(is_error(trainer.receive()));
    EXPECT_TRUE(trainer.is_closed());
  }
}

TEST_F(HostileTrainer, ThatDoesNotReadItsAnswersIsClosed) {
  RawTrainer trainer(daemon_.socket);
  std::string questions;
  while (questions.size() < (size_t{1} << 20)) {
    questions += wire::encode_frame(R"({"type":"?","id":1})");
  }
  size_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    const size_t went = trainer.send_bytes(questions, 60'000, 300);
    sent += went;
    if (went < questions.size()) {
      break;
    }
  }
  EXPECT_LT(sent, 20 * questions.size());
  EXPECT_TRUE(trainer.is_closed());
}

TEST_F(HostileTrainer, CannotStopTheDaemonByItsBell) {
  for (int way = 0; way < 3; ++way) {
    RawTrainer trainer(daemon_.socket);
    const auto joined = trainer.ask(join_request("bell"));
    ASSERT_TRUE(joined);
    ASSERT_EQ(trainer.descriptors.size(), 2u) << *joined;
    const int bell = trainer.descriptors[1].get();
    ASSERT_EQ(fcntl(bell, F_SETFL, way == 0 ? 0 : O_NONBLOCK), 0);
    const std::string rings(4096, 'r');
    for (int i = 0; i < 200; ++i) {
      (void)send(bell, rings.data(), rings.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (way == 1) {
      shutdown(bell, SHUT_RDWR);
    } else if (way == 2) {
      trainer.descriptors.clear();
    }
    EXPECT_TRUE(good_->advances());
    const auto answer = trainer.ask({{"type", "traffic"}, {"id", 2}});
    ASSERT_TRUE(answer);
  }
}

TEST_F(HostileTrainer, WithAnEndedBellDoesNotKeepTheDaemonBusy) {
  EXPECT_EQ(good_->finish(), "");
  good_.reset();
  RawTrainer trainer(daemon_.socket);
  ASSERT_TRUE(trainer.ask(join_request("bell")));
  ASSERT_EQ(trainer.descriptors.size(), 2u);
  trainer.descriptors.clear();
  std::this_thread::sleep_for(milliseconds(200));
  const auto before = processor_time(daemon_.process.pid());
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_LT(processor_time(daemon_.process.pid()) - before, milliseconds(300));
}

TEST_F(HostileTrainer, OrACleanerThatRemovesTheSocketDoesNotEndTheService) {
  struct stat before {
  }, after{};
  ASSERT_EQ(stat(daemon_.socket.c_str(), &before), 0);
  ASSERT_EQ(unlink(daemon_.socket.c_str()), 0);
  // The mode is set a moment after the socket is there.
  EXPECT_TRUE(eventually(
      [&] { return stat(daemon_.socket.c_str(), &after) == 0 && after.st_mode == before.st_mode; }));
  ASSERT_TRUE(eventually([&] { return RawTrainer(daemon_.socket).connected(); }));
  RawTrainer honest(daemon_.socket);
  const auto joined = honest.ask(join_request("honest"));
  ASSERT_TRUE(joined);
  EXPECT_EQ((*joined)["type"], "joined");
  EXPECT_THAT(daemon_.log(), HasSubstr("event=socket_made_again"));
}

}  // namespace
}  // namespace gradwire::control::testing
