// The trainers' sockets where the kernel lets trainers send descriptors: what is sent may take for ever to
// close, and the control thread goes on serving.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "client/wire/framing.h"
#include "daemon/control/large_documents.h"
#include "daemon/control/local_server.h"
#include "tests/control/fakes.h"
#include "tests/engine/lingering.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kLinger = 60;
constexpr std::chrono::seconds kSoon{20};  // and far less than kLinger

size_t entries(const char* directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}
size_t descriptors() {
  return entries("/proc/self/fd");
}

template <typename Condition>
bool soon(Condition condition) {
  const auto end = Clock::now() + kSoon;
  while (!condition() && Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  return condition();
}

// As on kernels before 6.16: any Unix socket of this process takes descriptors.
void let_descriptors_pass() {
  const int on = 1;
  for (int fd = 0; fd < 1024; ++fd) {
    (void)setsockopt(fd, SOL_SOCKET, 83, &on, sizeof(on));  // SO_PASSRIGHTS
  }
}

struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0); }
  int ours() { return std::exchange(ends[0], -1); }
  ~Pair() {
    for (const int end : ends) {
      if (end >= 0) {
        close(end);
      }
    }
  }
  int ends[2] = {-1, -1};
};

TEST(SocketReaper, ClosesWhatLingersWithoutWaitingForIt) {
  const size_t before = descriptors();
  std::vector<std::unique_ptr<Lingering>> held;
  {
    SocketReaper reaper;
    ASSERT_TRUE(reaper.start().ok());
    std::vector<std::unique_ptr<Pair>> pairs;
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) {
      pairs.push_back(std::make_unique<Pair>());
      held.push_back(std::make_unique<Lingering>(kLinger));
      EXPECT_EQ(send(pairs.back()->ends[1], "rings", 5, MSG_NOSIGNAL), 5);
      put_into(pairs.back()->ends[1], *held.back(), 0);
      put_into(pairs.back()->ends[1], *held.emplace_back(std::make_unique<Lingering>(kLinger)), MSG_OOB);
      reaper.end(pairs.back()->ours(), 7);
    }
    EXPECT_TRUE(soon([&] { return reaper.waiting() == 0; }));
    EXPECT_LT(Clock::now() - start, kSoon);
    EXPECT_LT(send(pairs.back()->ends[1], "", 1, MSG_NOSIGNAL), 0);
  }
  for (const auto& each : held) {
    each->end();
  }
  EXPECT_TRUE(soon([&] { return descriptors() == before; }));
}

TEST(SocketReaper, LetsTheOtherSideReadWhatWasSentAndSeeTheEndAtOnce) {
  SocketReaper reaper(nullptr, [](int fd) {
    std::this_thread::sleep_for(milliseconds(300));
    close(fd);
  });
  Pair pair;
  ASSERT_EQ(send(pair.ends[0], "bye", 3, MSG_NOSIGNAL), 3);
  ASSERT_EQ(send(pair.ends[1], "unread", 6, MSG_NOSIGNAL), 6);
  reaper.end(pair.ours(), 7);
  char bytes[8];
  EXPECT_EQ(recv(pair.ends[1], bytes, sizeof(bytes), MSG_DONTWAIT), 3);
  EXPECT_EQ(recv(pair.ends[1], bytes, sizeof(bytes), MSG_DONTWAIT), 0);
  EXPECT_TRUE(soon([&] { return reaper.waiting() == 0; }));
}

// Closes that nothing interrupts, until they are let go.
class Stuck {
 public:
  explicit Stuck(uint32_t user) : user_(user) {}
  SocketReaper::Close close_function(std::map<int, uint32_t>& owners) {
    return [this, &owners](int fd) {
      std::unique_lock lock(mutex_);
      const auto owner = owners.find(fd);
      if (owner != owners.end() && owner->second == user_) {
        most_ = std::max(most_, ++now_);
        go_.wait(lock, [this] { return released_; });
        --now_;
      }
      owners.erase(fd);
      ::close(fd);
    };
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    go_.notify_all();
  }
  size_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }
  std::mutex mutex_;

 private:
  const uint32_t user_;
  std::condition_variable go_;
  bool released_ = false;
  size_t now_ = 0, most_ = 0;
};

TEST(SocketReaper, AUserWhoseClosesAreStuckHoldsUpNobodyElseAndIsChargedForThem) {
  const size_t before = descriptors();
  config::QuotaOptions limits;
  limits.sessions_per_user = 50;
  const auto quotas = std::make_shared<QuotaLedger>(limits);
  std::map<int, uint32_t> owners;
  Stuck stuck(7);
  std::vector<std::unique_ptr<Lingering>> held;
  SocketReaper reaper([quotas](uint32_t uid) { return quotas->charge_closing(uid); },
                      stuck.close_function(owners));
  ASSERT_TRUE(reaper.start().ok());
  const auto end_one = [&](uint32_t uid, bool with_descriptor) {
    Pair pair;
    if (with_descriptor) {
      put_into(pair.ends[1], *held.emplace_back(std::make_unique<Lingering>(kLinger)), 0);
    }
    const int fd = pair.ours();
    {
      const std::lock_guard lock(stuck.mutex_);
      owners[fd] = uid;
    }
    reaper.end(fd, uid);
  };
  for (int i = 0; i < 50; ++i) {
    end_one(7, true);
  }
  for (int i = 0; i < 20; ++i) {
    end_one(8, i % 2 == 0);
  }
  EXPECT_TRUE(soon([&] { return reaper.waiting() == 50; })) << reaper.waiting();
  EXPECT_EQ(stuck.most(), SocketReaper::kThreadsPerUser);
  const auto refused = quotas->charge_session(7);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("and 50 ended ones whose sockets still close"));
  EXPECT_TRUE(quotas->charge_session(8).ok());
  stuck.release();
  EXPECT_TRUE(soon([&] { return reaper.waiting() == 0; }));
  EXPECT_TRUE(quotas->charge_session(7).ok());
  for (const auto& each : held) {
    each->end();
  }
  EXPECT_TRUE(soon([&] { return descriptors() == before; }));
}

TEST(SocketReaper, IsNotWaitedForByTheOneThatDropsIt) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  const auto closed = std::make_shared<std::atomic<int>>(0);
  {
    SocketReaper reaper(nullptr, [go, closed](int fd) {
      go->wait(false);
      ::close(fd);
      ++*closed;
    });
    ASSERT_TRUE(reaper.start().ok());
    for (int i = 0; i < 5; ++i) {
      Pair pair;
      reaper.end(pair.ours(), 7);
    }
  }
  EXPECT_EQ(*closed, 0);
  *go = true;
  go->notify_all();
  EXPECT_TRUE(soon([&] { return *closed == 5; }));
}

class Trainers : public ::testing::Test {
 protected:
  Trainers() {
    char name[] = "/tmp/gradwire-sockets-XXXXXX";
    directory_ = mkdtemp(name);
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
    std::filesystem::remove_all(directory_);
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
  std::string directory_;
  config::NodeOptions options_;
  asio::io_context io_;
  std::optional<LocalServer> server_;
  std::vector<std::unique_ptr<Lingering>> held_;
};

TEST_F(Trainers, WhoSendDescriptorsEndTheirOwnSessionAndNobodyElses) {
  const size_t before = descriptors();
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
  const size_t before = descriptors();
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
  const size_t before = descriptors();
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
