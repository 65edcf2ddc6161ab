// Memory stays charged until nobody has it any more.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "client/wire/framing.h"
#include "daemon/control/quota.h"
#include "daemon/control/shared_memory.h"

namespace gradwire::control {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kUser = 7;

class Lingering : public ::testing::Test {
 protected:
  static config::QuotaOptions limits() {
    config::QuotaOptions limits;
    limits.bytes_per_user = 10'000;
    return limits;
  }
  // As a bucket's memory: charged with what it has.
  std::shared_ptr<SharedMemory> make(Access access = Access::kBoth) {
    auto charge = ledger_->charge_bytes(kUser, 4096, "a page");
    auto memory = SharedMemory::create("test", 4096, access);
    EXPECT_TRUE(charge.ok() && memory.ok());
    (*memory)->keep(ledger_->until_gone((*memory)->fd()->get(), kUser, 4096, std::move(*charge)));
    return *memory;
  }
  uint64_t held() const { return ledger_->held_bytes(kUser); }

  const std::shared_ptr<QuotaLedger> ledger_ = std::make_shared<QuotaLedger>(limits());
};

int reopened(const SharedMemory& memory, int flags) {
  return open(("/proc/self/fd/" + std::to_string(memory.fd()->get())).c_str(), flags | O_CLOEXEC);
}

TEST_F(Lingering, MemoryThatOnlyTheDaemonHadIsGivenBackAtOnce) {
  ASSERT_TRUE(LingeringMemory().watches()) << "this kernel does not tell of the end of memfds";
  auto gradient = make();
  auto result = make(Access::kReadOnly);
  EXPECT_EQ(held(), 8192u);
  gradient->forget_fd();
  gradient = nullptr;
  EXPECT_EQ(held(), 4096u);
  result = nullptr;
  EXPECT_EQ(held(), 0u);
}

TEST_F(Lingering, MemoryIsChargedAsLongAsAnyKindOfDescriptorIsOpen) {
  for (const Access access : {Access::kBoth, Access::kReadOnly}) {
    for (const int flags : {O_RDONLY, O_PATH, O_RDWR, -1}) {
      auto memory = make(access);
      wire::UniqueFd theirs(flags < 0 ? dup(memory->fd()->get()) : reopened(*memory, flags));
      ASSERT_TRUE(theirs.valid());
      memory = nullptr;
      EXPECT_EQ(held(), 4096u) << flags;
      theirs.reset();
      EXPECT_EQ(held(), 0u) << flags;
    }
  }
}

TEST_F(Lingering, MemoryIsChargedAsLongAsItIsMapped) {
  auto memory = make(Access::kReadOnly);
  void* theirs = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory->fd()->get(), 0);
  ASSERT_NE(theirs, MAP_FAILED);
  memory = nullptr;
  EXPECT_EQ(held(), 4096u);
  munmap(theirs, 4096);
  EXPECT_EQ(held(), 0u);
}

TEST_F(Lingering, MemoryIsChargedAsLongAsADescriptorIsOnItsWayInASocket) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  wire::UniqueFd sender(ends[0]), receiver(ends[1]);
  auto memory = make();
  const int fds[] = {memory->fd()->get()};
  ASSERT_TRUE(wire::send_some(sender.get(), "x", fds).ok());
  memory = nullptr;
  EXPECT_EQ(held(), 4096u);
  receiver.reset();
  EXPECT_EQ(held(), 0u);
}

TEST_F(Lingering, ARefusalTellsHowMuchIsKeptAndTheNextOneAfterTheReleaseIsNone) {
  auto memory = make();
  wire::UniqueFd theirs(dup(memory->fd()->get()));
  EXPECT_THAT(ledger_->charge_bytes(kUser, 9000, "much").status().message(), Not(HasSubstr("ended")));
  memory = nullptr;
  EXPECT_THAT(
      ledger_->charge_bytes(kUser, 9000, "much").status().message(),
      AllOf(
          HasSubstr(
              "user 7 holds 4096 bytes on this node (buckets 4096), 4096 of them memory of ended buckets and "
              "sessions that its processes still keep mapped or open, and asks for 9000 more (much)"),
          HasSubstr("unmap and close the memory of what has ended")));
  EXPECT_FALSE(ledger_->fits_bytes(kUser, 9000, 0));
  EXPECT_TRUE(ledger_->charge_bytes(8, 9000, "another user's").ok());
  theirs.reset();
  EXPECT_TRUE(ledger_->charge_bytes(kUser, 9000, "much").ok());
}

TEST_F(Lingering, MemoryOfEndedSessionsCountsOnlyIfItIsKept) {
  std::vector<wire::UniqueFd> kept;
  for (int i = 0; i < 3; ++i) {
    auto memory = SharedMemory::create("session", 4096, Access::kBoth);
    ASSERT_TRUE(memory.ok());
    (*memory)->keep(ledger_->until_gone((*memory)->fd()->get(), kUser, 4096, nullptr));
    EXPECT_TRUE(ledger_->charge_session(kUser).ok());
    EXPECT_EQ(ledger_->fits_bytes(kUser, 10'000, 0), i == 0) << "the living one does not count";
    kept.emplace_back(dup((*memory)->fd()->get()));
  }
  EXPECT_FALSE(ledger_->fits_bytes(kUser, 4096, 0));
  EXPECT_THAT(ledger_->charge_session(kUser).status().message(),
              AllOf(HasSubstr("12288 of them memory of ended buckets and sessions"), HasSubstr("1 more rank"),
                    HasSubstr("quotas.bytes_per_user is 10000")));
  kept.clear();
  EXPECT_TRUE(ledger_->charge_session(kUser).ok());
  EXPECT_TRUE(ledger_->charge_bytes(kUser, 10'000, "all").ok());
}

TEST_F(Lingering, NothingIsChargedForNothing) {
  auto charges = ledger_->charge_bytes(kUser, std::vector<uint64_t>{4096, 0}, "a page and no residual");
  ASSERT_TRUE(charges.ok());
  EXPECT_EQ((*charges)[1], nullptr);
  (*charges)[0] = nullptr;
  EXPECT_EQ(held(), 0u);
  (*charges)[1] = nullptr;
  EXPECT_EQ(held(), 0u);
}

TEST_F(Lingering, ManySmallPiecesAreRefusedByTheirNumber) {
  std::vector<void*> mappings;
  for (uint64_t i = 0; i <= QuotaLedger::kMaxKeptPieces; ++i) {
    if (i + 1 == QuotaLedger::kMaxKeptPieces) {
      EXPECT_TRUE(ledger_->charge_session(kUser).ok());
    }
    wire::UniqueFd memfd(memfd_create("small", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(memfd.get(), 4096), 0);
    const auto token = ledger_->until_gone(memfd.get(), kUser, 0, nullptr);
    void* mapped = mmap(nullptr, 4096, PROT_NONE, MAP_SHARED, memfd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    mappings.push_back(mapped);
  }
  EXPECT_THAT(ledger_->charge_session(kUser).status().message(), HasSubstr("16384 are the most"));
  EXPECT_THAT(ledger_->charge_bytes(kUser, 1, "").status().message(), HasSubstr("still keep 16385 pieces"));
  EXPECT_FALSE(ledger_->fits_bytes(kUser, 1, 10'000)) << "no bytes that are freed help";
  for (void* mapped : mappings) {
    munmap(mapped, 4096);
  }
  EXPECT_TRUE(ledger_->charge_session(kUser).ok())
      << "also where there are more notices than the kernel keeps";
  EXPECT_TRUE(ledger_->charge_bytes(kUser, 10'000, "all").ok());
}

TEST_F(Lingering, MemoryThatCannotBeWatchedIsChargedForAMinuteMoreAndTheLogSaysSoOnce) {
  LingeringMemory::Clock::time_point now{};
  for (const bool notices : {false, true}) {
    const auto ledger = std::make_shared<QuotaLedger>(
        limits(), std::make_shared<LingeringMemory>(notices, [&now] { return now; }));
    ::testing::internal::CaptureStdout();
    const auto make_unwatched = [&] {
      auto charge = ledger->charge_bytes(kUser, 4096, "a page");
      EXPECT_TRUE(charge.ok());
      return ledger->until_gone(-1, kUser, 4096, std::move(*charge));
    };
    auto first = make_unwatched();
    auto second = make_unwatched();
    now += std::chrono::hours(1);
    EXPECT_EQ(ledger->held_bytes(kUser), 8192u) << "the daemon has it";
    first = nullptr;
    now += std::chrono::seconds(59);
    second = nullptr;
    EXPECT_EQ(ledger->held_bytes(kUser), 8192u) << "somebody may have it";
    EXPECT_THAT(ledger->charge_bytes(kUser, 4096, "more").status().message(),
                HasSubstr("8192 of them memory of ended buckets"));
    now += std::chrono::seconds(1);
    EXPECT_EQ(ledger->held_bytes(kUser), 4096u);
    now += std::chrono::seconds(59);
    EXPECT_EQ(ledger->held_bytes(kUser), 0u);
    EXPECT_THAT(ledger->charge_bytes(kUser, 10'001, "too much").status().message(), Not(HasSubstr("ended")));
    const std::string log = ::testing::internal::GetCapturedStdout();
    const size_t said = log.find("event=memory_not_watched");
    ASSERT_NE(said, std::string::npos) << log;
    EXPECT_THAT(log, AllOf(HasSubstr("cause="), HasSubstr("remedy=")));
    EXPECT_EQ(log.find("event=memory_not_watched", said + 1), std::string::npos) << "once: " << log;
  }
}

TEST_F(Lingering, MemoryThatIsNotWatchedIsNotTakenForGoneWhenNoticesAreMissed) {
  uint64_t kept_notices = 0;
  std::ifstream("/proc/sys/fs/inotify/max_queued_events") >> kept_notices;
  if (kept_notices == 0 || kept_notices > 200'000) {
    GTEST_SKIP() << "fs.inotify.max_queued_events is " << kept_notices;
  }
  const auto unwatched = ledger_->until_gone(-1, kUser, 4096, *ledger_->charge_bytes(kUser, 4096, "a page"));
  for (uint64_t i = 0; i <= kept_notices; ++i) {  // each leaves one at least
    const wire::UniqueFd memfd(memfd_create("small", MFD_CLOEXEC));
    (void)ledger_->until_gone(memfd.get(), kUser, 0, nullptr);
  }
  EXPECT_EQ(held(), 4096u);
}

TEST_F(Lingering, ALedgerMayEndBeforeWhatItCharged) {
  auto ledger = std::make_shared<QuotaLedger>(limits());
  auto charge = ledger->charge_bytes(kUser, 4096, "a page");
  auto memory = SharedMemory::create("test", 4096, Access::kBoth);
  ASSERT_TRUE(charge.ok() && memory.ok());
  const std::weak_ptr<QuotaLedger> weak = ledger;
  (*memory)->keep(ledger->until_gone((*memory)->fd()->get(), kUser, 4096, std::move(*charge)));
  ledger = nullptr;
  EXPECT_TRUE(weak.expired());
  *memory = nullptr;
}

}  // namespace
}  // namespace gradwire::control
