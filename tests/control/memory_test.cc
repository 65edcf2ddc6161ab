// Memory that is shared with trainers, its quotas, and the directory where the daemon is found.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "daemon/control/counters_page.h"
#include "daemon/control/local_server.h"
#include "daemon/control/quota.h"
#include "daemon/control/shared_memory.h"
#include "daemon/control/trainer_buffers.h"
#include "tests/control/runtime_directory.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;

TEST(SharedMemory, OfAGradientIsWritableAndCannotChangeItsSize) {
  const auto memory = SharedMemory::create("g", 5000, Access::kBoth);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ((*memory)->bytes(), 8192u);
  const int fd = (*memory)->fd()->get();
  EXPECT_EQ(ftruncate(fd, 4096), -1);
  EXPECT_EQ(ftruncate(fd, 16384), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 7, 8192);
  EXPECT_EQ(static_cast<char*>((*memory)->data())[8191], 7);
  munmap(mapped, 8192);
}

TEST(SharedMemory, OfAResultIsWritableForTheDaemonOnly) {
  const auto memory = SharedMemory::create("r", 0, Access::kReadOnly);
  ASSERT_TRUE(memory.ok());
  const int fd = (*memory)->fd()->get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  char byte = 1;
  EXPECT_EQ(pwrite(fd, &byte, 1, 0), -1);
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), -1);
  static_cast<char*>((*memory)->data())[5] = 9;
  EXPECT_EQ(static_cast<char*>(mapped)[5], 9);
  munmap(mapped, 4096);
}

TEST(SharedMemory, ThatIsNotToBeHadIsAnError) {
  const auto memory = SharedMemory::create("huge", uint64_t{1} << 60, Access::kBoth);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), Code::kResourceExhausted);
}

TEST(SharedMemory, OfASessionHasTheAgreedLayout) {
  const auto session = make_session_memory(3, 8, 17, std::make_shared<SocketReaper>(), 0);
  ASSERT_TRUE(session.ok());
  const layout::SessionHeader& header = *(*session)->header();
  EXPECT_EQ(header.magic, layout::kSessionMagic);
  EXPECT_EQ(header.generation, 17u);
  EXPECT_EQ(header.rank, 3u);
  EXPECT_GE(header.total_bytes, layout::kSessionBytes);
}

TEST(SharedMemory, OfASessionHasABellThatTheTrainerCannotMakeTheDaemonWaitAt) {
  const auto session = make_session_memory(0, 1, 1, std::make_shared<SocketReaper>(), 0);
  ASSERT_TRUE(session.ok());
  const int daemon = (*session)->bell();
  const int trainer = (*session)->trainer_bell->get();
  ASSERT_EQ(fcntl(trainer, F_SETFL, 0), 0);
  EXPECT_EQ(fcntl(daemon, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EXPECT_EQ(fcntl(daemon, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  int in_line = 0;
  socklen_t size = sizeof(in_line);
  ASSERT_EQ(getsockopt(daemon, SOL_SOCKET, SO_OOBINLINE, &in_line, &size), 0);
  EXPECT_EQ(in_line, 1) << "descriptors with urgent bytes are not seen";
  const char ring = 1;
  for (int rings = 0; send(daemon, &ring, 1, MSG_NOSIGNAL) == 1; ++rings) {
    ASSERT_LT(rings, 1'000'000);
  }
  EXPECT_EQ(errno, EAGAIN);
  (*session)->trainer_bell.reset();
  EXPECT_EQ(send(daemon, &ring, 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(Quota, IsPerUserAndComesBack) {
  config::QuotaOptions limits;
  limits.bytes_per_user = 100;
  limits.jobs_per_user = 1;
  limits.sessions_per_user = 1;
  const auto ledger = std::make_shared<QuotaLedger>(limits);
  auto first = ledger->charge_bytes(1, 60, "six tens");
  ASSERT_TRUE(first.ok());
  const auto refused = ledger->charge_bytes(1, 41, "2 x 20 + 1");
  EXPECT_THAT(refused.status().message(),
              HasSubstr("holds 60 bytes on this node (buckets 60) and asks for 41 more (2 x 20 + 1)"));
  EXPECT_TRUE(ledger->charge_bytes(2, 100, "").ok());
  EXPECT_FALSE(ledger->charge_bytes(1, UINT64_MAX, "").ok());
  *first = nullptr;
  EXPECT_TRUE(ledger->charge_bytes(1, 100, "").ok());
  const auto job = ledger->charge_job(1);
  EXPECT_FALSE(ledger->charge_job(1).ok());
  auto rank = ledger->charge_session(1);
  ASSERT_TRUE(rank.ok());
  EXPECT_THAT(ledger->charge_session(1).status().message(), HasSubstr("quotas.sessions_per_user is 1"));
  EXPECT_TRUE(ledger->charge_session(2).ok());
  *rank = nullptr;
  EXPECT_TRUE(ledger->charge_session(1).ok());
}

TEST(TrainerBuffers, AreBoundedPerUserAndInAll) {
  TrainerBuffers buffers;
  const size_t most = TrainerBuffers::kPerUser;
  EXPECT_TRUE(buffers.change(1, 0, most));
  EXPECT_FALSE(buffers.change(1, 0, 1));
  EXPECT_TRUE(buffers.change(1, most, most - 1));
  EXPECT_TRUE(buffers.change(1, 0, 1));
  uint32_t uid = 2;
  for (size_t held = most; held < TrainerBuffers::kInAll; held += most) {
    EXPECT_TRUE(buffers.change(uid++, 0, most));
  }
  EXPECT_FALSE(buffers.change(uid, 0, 1));
  EXPECT_TRUE(buffers.change(1, most, 0));
  EXPECT_TRUE(buffers.change(uid, 0, 1));
}

TEST_F(Runtime, DirectoryHasOneDaemonAtATime) {
  auto lock = lock_runtime_dir(directory_);
  ASSERT_TRUE(lock.ok());
  const auto second = lock_runtime_dir(directory_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr("pid " + std::to_string(getpid())));
  lock->reset();
  EXPECT_TRUE(lock_runtime_dir(directory_).ok());
}

TEST_F(Runtime, DirectoryThatIsMadeIsForTheTrainersOfAllUsers) {
  const mode_t before = umask(077);
  const auto lock = lock_runtime_dir(directory_ + "/made");
  umask(before);
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  EXPECT_EQ(std::filesystem::status(directory_ + "/made").permissions(), std::filesystem::perms{0755});
  // Whoever made it, the mode is his.
  std::filesystem::permissions(directory_, std::filesystem::perms{0711});
  ASSERT_TRUE(lock_runtime_dir(directory_).ok());
  EXPECT_EQ(std::filesystem::status(directory_).permissions(), std::filesystem::perms{0711});
}

TEST_F(Runtime, PlacesThatHoldSomethingElseAreNamedWithTheRemedy) {
  for (const char* name : {"gradwired.lock", "counters"}) {
    std::filesystem::create_directory(directory_ + "/" + name);
  }
  std::ofstream(directory_ + "/file") << "x";
  const auto page = CountersPage::create(directory_, "a", "0.1.0", "tcp");
  for (const Status& status : {lock_runtime_dir(directory_).status(),
                               lock_runtime_dir(directory_ + "/file").status(), page.status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("remove it or set another node.runtime_dir"));
  }
  EXPECT_THAT(page.status().message(), HasSubstr(directory_ + "/counters is a directory"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 3);
  std::filesystem::remove(directory_ + "/counters");
  ASSERT_EQ(mkfifo((directory_ + "/counters").c_str(), 0600), 0);
  EXPECT_THAT(CountersPage::create(directory_, "a", "0.1.0", "tcp").status().message(),
              HasSubstr("counters is not a file"));
}

}  // namespace
}  // namespace gradwire::control
