#include "daemon/control/socket_reaper.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>

#include "daemon/control/quota.h"
#include "tests/control/lingering_sockets.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(SocketReaper, ClosesWhatLingersWithoutWaitingForIt) {
  const size_t before = descriptors_at_rest();
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
  config::QuotaOptions limits;
  limits.sessions_per_user = 50;
  const auto quotas = std::make_shared<QuotaLedger>(limits);
  const size_t before = descriptors_at_rest();
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
  EXPECT_TRUE(soon([&] { return stuck.most() == SocketReaper::kThreadsPerUser; })) << stuck.most();
  const auto refused = quotas->charge_session(7);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("and 50 ended ones whose sockets still close"));
  EXPECT_TRUE(quotas->charge_session(8).ok());
  stuck.release();
  EXPECT_TRUE(soon([&] { return reaper.waiting() == 0; }));
  EXPECT_EQ(stuck.most(), SocketReaper::kThreadsPerUser);
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

}  // namespace
}  // namespace gradwire::control
