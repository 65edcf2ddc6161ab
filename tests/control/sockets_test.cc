// The trainers' sockets where the kernel lets trainers send descriptors: what is sent may take for ever to
// close, and the control thread goes on serving.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>

#include "client/wire/framing.h"
#include "daemon/control/large_documents.h"
#include "daemon/control/local_server.h"
#include "tests/control/fakes.h"
#include "tests/control/lingering_sockets.h"
#include "tests/control/runtime_directory.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Trainers : public Runtime {
 protected:
  Trainers() {
    options_.socket = directory_ + "/socket";
    context().reaper = std::make_shared<SocketReaper>(
        [quotas = context().quotas](uint32_t uid) { return quotas->charge_closing(uid); });
    EXPECT_TRUE(context().reaper->start().ok());
    server_.emplace(io_, context(), *node_.members);
    EXPECT_TRUE(server_->start(options_).ok());
    let_descriptors_pass();
  }
  ~Trainers() override {
    server_.reset();
    // The listener, too, is closed by a thread: the next test counts descriptors.
    EXPECT_TRUE(soon([&] { return context().reaper->waiting() == 0; }));
  }
  NodeContext& context() { return *node_.context; }
  int connect() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, options_.socket.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  void serve(milliseconds time = milliseconds(20)) {
    io_.restart();
    const auto start = Clock::now();
    io_.run_for(time);
    EXPECT_LT(Clock::now() - start, kSoon) << "the control thread waited";
  }
  template <typename Condition>
  bool serve_until(Condition condition) {
    const auto end = Clock::now() + kSoon;
    while (!condition() && Clock::now() < end) {
      serve(milliseconds(5));
      cluster_.scheduler.settle();
    }
    return condition();
  }
  // A request, and the beginning of its answer.
  std::string ask(int fd, const Json& document) {
    const std::string frame = wire::encode_frame(document.dump());
    EXPECT_EQ(send(fd, frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
    return answer(fd);
  }
  std::string answer(int fd) {
    std::array<char, 4096> bytes;
    ssize_t got = -1;
    serve_until([&] { return got >= 0 || (got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT)) >= 0; });
    return {bytes.data(), got > 0 ? static_cast<size_t>(got) : 0};
  }
  Lingering& lingering() { return *held_.emplace_back(std::make_unique<Lingering>(kLinger)); }
  void end_lingering() {
    for (const auto& each : held_) {
      each->end();
    }
  }

  testing::TestCluster cluster_{{"a"}};
  testing::TestNode& node_ = *cluster_.nodes[0];
  config::NodeOptions options_;
  asio::io_context io_;
  std::optional<LocalServer> server_;
  std::vector<std::unique_ptr<Lingering>> held_;
};

TEST_F(Trainers, WhoSendDescriptorsEndTheirOwnSessionAndNobodyElses) {
  const size_t before = descriptors_at_rest();
  const int honest = connect();
  const int hostile = connect();
  EXPECT_THAT(ask(honest, {{"type", "what"}, {"id", 1}}), HasSubstr("is unknown"));
  put_into(hostile, lingering(), 0);
  EXPECT_THAT(answer(hostile), HasSubstr("sent descriptors"));
  EXPECT_THAT(ask(honest, {{"type", "what"}, {"id", 2}}), HasSubstr("is unknown"));
  EXPECT_TRUE(serve_until([&] { return server_->connections() == 1 && context().reaper->waiting() == 0; }));
  close(hostile);
  close(honest);
  EXPECT_TRUE(serve_until([&] { return server_->connections() == 0; }));
  end_lingering();
  EXPECT_TRUE(serve_until([&] { return descriptors() == before; }));
}

TEST_F(Trainers, AreServedWhileManyLeaveLingeringDescriptorsInTheirSockets) {
  const size_t before = descriptors_at_rest();
  const size_t threads = entries("/proc/self/task");
  const int honest = connect();
  for (int i = 0; i < 60; ++i) {
    const int hostile = connect();
    put_into(hostile, lingering(), i % 3 == 0 ? MSG_OOB : 0);
    if (i % 2 == 0) {
      serve(milliseconds(1));
    }
    close(hostile);
    EXPECT_LE(entries("/proc/self/task"), threads + SocketReaper::kThreads);
  }
  EXPECT_THAT(ask(honest, {{"type", "what"}, {"id", 1}}), HasSubstr("is unknown"));
  EXPECT_TRUE(serve_until([&] { return server_->connections() == 1 && context().reaper->waiting() == 0; }));
  close(honest);
  end_lingering();
  EXPECT_TRUE(serve_until([&] { return descriptors() == before && entries("/proc/self/task") <= threads; }));
}

TEST_F(Trainers, WhoWaitToBeAcceptedDoNotHoldUpTheEnd) {
  std::vector<int> waiting;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(connect());
    put_into(waiting.back(), lingering(), 0);
    close(waiting.back());
  }
  const auto start = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - start, kSoon);
  EXPECT_TRUE(soon([&] { return context().reaper->waiting() == 0; }));
  io_.restart();
  io_.poll();
  end_lingering();
}

TEST_F(Trainers, WhoseLargeDocumentsComeTogetherDelayOthersByFewOfThem) {
  const size_t before = descriptors_at_rest();
  const int honest = connect();
  EXPECT_THAT(ask(honest, {{"type", "what"}, {"id", 1}}), HasSubstr("is unknown"));
  const Json document = {{"type", "what"}, {"id", 1}, {"text", std::string(60'000, 'x')}};
  ASSERT_GT(document.dump().size(), LargeDocuments::kLarge);
  const std::string frame = wire::encode_frame(document.dump());
  std::vector<int> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(connect());
    EXPECT_THAT(ask(crowd.back(), {{"type", "what"}, {"id", 1}}), HasSubstr("is unknown"));
  }
  for (const int fd : crowd) {  // all are there before one is read
    ASSERT_EQ(send(fd, frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  }
  std::array<char, 4096> bytes;
  size_t answered = 0;
  const auto step_until = [&](auto condition) {
    const auto end = Clock::now() + kSoon;
    io_.restart();
    bool met = false;
    while (!(met = condition()) && Clock::now() < end) {
      io_.run_one_for(milliseconds(20));
      answered += static_cast<size_t>(std::count_if(crowd.begin(), crowd.end(), [&](int fd) {
        return recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0;
      }));
    }
    return met;
  };
  ASSERT_TRUE(step_until([&] { return answered > 0; }));
  const std::string small = wire::encode_frame(Json{{"type", "what"}, {"id", 2}}.dump());
  ASSERT_EQ(send(honest, small.data(), small.size(), MSG_NOSIGNAL), static_cast<ssize_t>(small.size()));
  const size_t first = answered;
  ASSERT_TRUE(step_until([&] { return recv(honest, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0; }));
  EXPECT_LE(answered - first, 3U);
  EXPECT_TRUE(step_until([&] { return answered == crowd.size(); })) << answered;
  for (const int fd : crowd) {
    close(fd);
  }
  close(honest);
  EXPECT_TRUE(serve_until([&] { return server_->connections() == 0 && descriptors() == before; }));
}

TEST(LargeDocuments, AreTakenInOrderAndLetWhatIsReadyInBetween) {
  asio::io_context context;
  auto& documents = LargeDocuments::of(context.get_executor());
  Pair pair;
  asio::local::stream_protocol::socket socket(context, asio::local::stream_protocol(), pair.ours());
  std::string order;
  std::function<void()> watch = [&] {
    socket.async_wait(asio::socket_base::wait_write, [&](const boost::system::error_code& error) {
      if (!error && order.size() < 100) {
        order += '.';
        watch();
      }
    });
  };
  for (const char name : {'a', 'b', 'c', 'd', 'e'}) {
    documents.wait([&order, &documents, name] {
      order += name;
      if (name == 'b') {
        documents.wait([&order] { order += 'f'; });
      }
    });
  }
  EXPECT_EQ(order, "");
  watch();
  context.run_for(milliseconds(500));
  std::string large;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != '.') {
      EXPECT_TRUE(large.size() < 2 || order[i - 1] == '.') << order;
      large += order[i];
    }
  }
  EXPECT_EQ(large, "abcdef");
}

TEST_F(Trainers, WhoAnnounceWhatIsTooLongBehindADocumentHearItAtOnce) {
  const int fd = connect();
  const std::string bytes =
      wire::encode_frame(Json{{"type", "what"}, {"id", 1}}.dump()) + std::string("\xff\xff\xff\xff", 4);
  ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  const std::string answers = answer(fd) + answer(fd);
  EXPECT_THAT(answers, HasSubstr("is unknown"));
  EXPECT_THAT(answers, HasSubstr("was announced"));
  EXPECT_EQ(server_->connections(), 0U);
  close(fd);
}

TEST_F(Trainers, FindNoSocketAfterTheStopEvenIfItWasToBeLookedAfter) {
  std::this_thread::sleep_for(milliseconds(2100));  // the time to look has come, and nobody has looked
  asio::post(io_, [this] { server_->stop(); });
  serve();
  EXPECT_FALSE(std::filesystem::exists(options_.socket));
}

}  // namespace
}  // namespace gradwire::control
