// Host names whose lookups take for ever.
#include "daemon/control/resolver.h"

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "daemon/control/peer_network.h"

namespace gradwire::control {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A name service: "quick..." is answered at once, everything else when it is let go. Threads may outlive the
// test, so that it is shared.
struct Names {
  Result<Resolver::Addresses> look_up(const std::string& host) {
    std::unique_lock lock(mutex);
    ++calls;
    most = std::max(most, ++now);
    change.wait(lock, [&] { return host.starts_with("quick") || released; });
    --now;
    ++finished;
    change.notify_all();
    return host == "quick-none"
               ? Result<Resolver::Addresses>(Status(Code::kUnavailable, "nobody knows it"))
               : Result<Resolver::Addresses>(Resolver::Addresses{asio::ip::make_address("127.0.0.1")});
  }
  void release() {
    const std::lock_guard lock(mutex);
    released = true;
    change.notify_all();
  }
  size_t count(const size_t& of) {
    const std::lock_guard lock(mutex);
    return of;
  }
  // All that was begun, and so many at least.
  bool all_finished(size_t least = 0) {
    std::unique_lock lock(mutex);
    return change.wait_for(lock, std::chrono::seconds(20),
                           [&] { return finished == calls && calls >= least; });
  }

  std::mutex mutex;
  std::condition_variable change;
  bool released = false;
  size_t calls = 0, now = 0, most = 0, finished = 0;
};

class Lookups : public ::testing::Test {
 protected:
  using Answer = std::shared_ptr<std::optional<Result<Resolver::Addresses>>>;

  Lookups() : resolver_(std::in_place, scheduler_, lookup()) {}
  ~Lookups() override {
    names_->release();
    EXPECT_TRUE(names_->all_finished());
  }
  Resolver::Lookup lookup() {
    return [names = names_](const std::string& host) { return names->look_up(host); };
  }
  Answer resolve(uint32_t uid, const std::string& host) {
    auto answer = std::make_shared<std::optional<Result<Resolver::Addresses>>>();
    resolver_->resolve(uid, host, [answer](const Result<Resolver::Addresses>& result) {
      EXPECT_FALSE(answer->has_value());
      *answer = result;
    });
    EXPECT_FALSE(answer->has_value()) << "never from inside the call";
    return answer;
  }
  template <typename Condition>
  bool run_until(Condition condition) {
    const Nanoseconds end = scheduler_.now() + std::chrono::seconds(20);
    while (!condition() && scheduler_.now() < end) {
      context_.restart();
      context_.run_for(milliseconds(2));
    }
    return condition();
  }
  bool found(const Answer& answer) {
    return run_until([&] { return answer->has_value(); }) && (*answer)->ok();
  }
  std::string failure(const Answer& answer) {
    return run_until([&] { return answer->has_value(); }) ? (*answer)->status().message() : "none";
  }

  std::shared_ptr<Names> names_ = std::make_shared<Names>();
  asio::io_context context_;
  AsioScheduler scheduler_{context_};
  std::optional<Resolver> resolver_;
};

TEST_F(Lookups, OfOneUserDelayNobodyElses) {
  std::vector<Answer> slow;
  for (int i = 0; i < 30; ++i) {
    slow.push_back(resolve(7, "slow-" + std::to_string(i)));
  }
  EXPECT_TRUE(found(resolve(8, "quick")));
  EXPECT_THAT(failure(resolve(8, "quick-none")), HasSubstr("nobody knows it"));
  const std::string refused = failure(slow.back());
  EXPECT_THAT(refused, HasSubstr("user 7 has 8 host names looked up at once"));
  EXPECT_THAT(refused, HasSubstr("by its address"));
  names_->release();
  for (size_t i = 0; i < Resolver::kLookupsPerUser; ++i) {
    EXPECT_TRUE(found(slow[i])) << i;
  }
  EXPECT_LE(names_->count(names_->most), Resolver::kLookupsPerUser + 1);
  EXPECT_TRUE(found(resolve(7, "slow-again"))) << "the places come back";
}

TEST_F(Lookups, AreBoundedInAll) {
  std::vector<Answer> slow;
  for (uint32_t i = 0; i < Resolver::kLookups; ++i) {
    slow.push_back(resolve(100 + i, "slow"));
  }
  EXPECT_THAT(failure(resolve(8, "quick")), HasSubstr("all users of this node have 64 host names looked up"));
  names_->release();
  for (const auto& each : slow) {
    EXPECT_TRUE(found(each));
  }
  EXPECT_TRUE(found(resolve(8, "quick")));
}

TEST_F(Lookups, OfTheSameNameByTheSameUserAreOne) {
  const auto first = resolve(7, "slow");
  const auto second = resolve(7, "slow");
  const auto other = resolve(8, "slow");
  names_->release();
  EXPECT_TRUE(found(first));
  EXPECT_TRUE(found(second));
  EXPECT_TRUE(found(other));
  EXPECT_EQ(names_->count(names_->calls), 2u);
}

TEST_F(Lookups, ThatNobodyWaitsForAnyMoreEndByThemselves) {
  const auto slow = resolve(7, "slow");
  ASSERT_TRUE(run_until([&] { return names_->count(names_->now) == 1; }));
  resolver_.reset();  // at once
  names_->release();
  EXPECT_TRUE(names_->all_finished());
  EXPECT_TRUE(run_until([&] { return slow.use_count() == 1; })) << "the reply is dropped";
  EXPECT_FALSE(slow->has_value());
}

// Keeps what is posted until the test runs it.
class Held final : public Scheduler {
 public:
  Nanoseconds now() const override { return Nanoseconds(0); }
  uint64_t after(Nanoseconds, Work) override { return 1; }
  void cancel(uint64_t) override {}
  void post(Work work) override {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    posted_.notify_all();
  }
  Work next() {
    std::unique_lock lock(mutex_);
    if (!posted_.wait_for(lock, std::chrono::seconds(20), [this] { return !works_.empty(); })) {
      return nullptr;
    }
    Work work = std::move(works_.back());
    works_.pop_back();
    return work;
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Work> works_;
};

TEST_F(Lookups, WhoseAnswersAreUnderWayWhenTheResolverGoesAwayAreDropped) {
  Held scheduler;
  for (const bool gone : {false, true}) {
    resolver_.emplace(scheduler, lookup());
    const auto quick = resolve(7, "quick");
    const Work answer = scheduler.next();
    ASSERT_TRUE(answer);
    if (gone) {
      resolver_.reset();
    }
    answer();
    EXPECT_EQ(quick->has_value(), !gone);
  }
}

TEST_F(Lookups, OfOneNameHaveABoundedNumberThatWaits) {
  std::vector<Answer> waiting;
  for (size_t i = 0; i < Resolver::kRepliesPerLookup; ++i) {
    waiting.push_back(resolve(7, "slow"));
  }
  EXPECT_THAT(failure(resolve(7, "slow")), HasSubstr("64 joins of user 7 wait for the address of slow"));
  names_->release();
  for (const Answer& answer : waiting) {
    EXPECT_TRUE(found(answer));
  }
  EXPECT_EQ(names_->count(names_->calls), 1u);
}

TEST_F(Lookups, OfPeersHoldUpNeitherOtherUsersNorTheEnd) {
  config::PeerOptions options;
  auto network = std::make_unique<PeerNetwork>(context_, scheduler_, options, lookup());
  std::vector<LinkPtr> accepted;
  ASSERT_TRUE(network->start([&accepted](LinkPtr link) { accepted.push_back(std::move(link)); }).ok());
  int slow = 0;
  for (int i = 0; i < 30; ++i) {
    network->connect("slow-" + std::to_string(i) + ":7470", 7, [&slow](const Result<LinkPtr>&) { ++slow; });
  }
  std::optional<Result<LinkPtr>> link;
  network->connect("quick", 8, [&link](const Result<LinkPtr>& result) { link = result; });
  EXPECT_TRUE(run_until([&] { return link.has_value(); }));
  EXPECT_TRUE(link->ok()) << link->status().message();
  const int refused = slow;  // before the others' time is over
  std::optional<Result<LinkPtr>> none;
  network->connect("quick-none", 8, [&none](const Result<LinkPtr>& result) { none = result; });
  EXPECT_TRUE(run_until([&] { return none.has_value(); }));
  EXPECT_THAT(none->status().message(), HasSubstr("'quick-none' is not found: nobody knows it"));
  EXPECT_EQ(none->status().code(), Code::kUnavailable);
  EXPECT_EQ(refused, 30 - static_cast<int>(Resolver::kLookupsPerUser)) << "the rest is under way";
  network->stop();
  network.reset();
}

TEST(LookUp, FindsTheNamesOfThisHostAndSaysWhatItDoesNotFind) {
  const auto found = look_up("localhost");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_TRUE(found->front().is_loopback());
  EXPECT_FALSE(look_up("a..b").ok());  // no name server is asked for what cannot be a name
}

}  // namespace
}  // namespace gradwire::control
