// A daemon that is not there, not there yet, or comes back.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Attempt try_join(const std::string& socket, int64_t wait_ms = 0) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.world = 1;
  options.rendezvous = "";
  options.socket = socket.c_str();
  options.wait_ms = wait_ms;
  gw_job* job = nullptr;
  const gw_status status = gw_join(&options, &job);
  return {status == GW_OK ? gw_leave(job) : status, gw_last_error()};
}

class Directory {
 public:
  Directory() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/gradwire-test-XXXXXX";
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Directory() {
    ::unlink((path_ + "/s").c_str());
    ::rmdir(path_.c_str());
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string socket() const { return path_ + "/s"; }

 private:
  std::string path_;
};

TEST(Reach, EachReasonIsSaidWithTheSocketAndTheRemedy) {
  const Directory directory;
  expect(try_join(directory.socket()), GW_ERR_UNAVAILABLE, "there is no such socket");
  EXPECT_NE(last_error().find("systemctl start gradwired"), std::string::npos) << gw_last_error();
  EXPECT_NE(last_error().find(directory.socket()), std::string::npos) << gw_last_error();
  std::ofstream(directory.socket()) << "a file";
  expect(try_join(directory.socket()), GW_ERR_UNAVAILABLE, "something else");
  expect(try_join(directory.socket() + "/below"), GW_ERR_UNAVAILABLE, "there is no such socket");
  FakeDaemon daemon;
  daemon.die();
  expect(try_join(daemon.socket_path()), GW_ERR_UNAVAILABLE, "connection refused");
  expect(try_join(std::string(150, 's')), GW_ERR_INVALID, "GRADWIRE_SOCKET to a shorter one");
}

// As a user that is not root.
Attempt join_as_nobody(const std::string& socket) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) {
      _exit(99);
    }
    const Attempt attempt = try_join(socket);
    (void)!::write(ends[1], attempt.error.data(), attempt.error.size());
    _exit(attempt.status);
  }
  ::close(ends[1]);
  char sentence[2048];
  const ssize_t bytes = ::read(ends[0], sentence, sizeof(sentence));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {WEXITSTATUS(status), std::string(sentence, bytes > 0 ? static_cast<size_t>(bytes) : 0)};
}

TEST(Reach, AUserWithoutPermissionIsToldWhichGroupMayUseTheSocket) {
  FakeDaemon daemon;
  const std::string& socket = daemon.socket_path();
  const std::string directory = socket.substr(0, socket.rfind('/'));
  ASSERT_EQ(::chmod(socket.c_str(), 0), 0);
  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  expect(join_as_nobody(socket), GW_ERR_PERMISSION, "may not use the socket, which is for group ");
  ASSERT_EQ(::chmod(directory.c_str(), 0), 0);
  expect(join_as_nobody(socket), GW_ERR_PERMISSION, "may not look into a directory of this path");
  ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
}

TEST(Reach, AWaitEndsWithTheSameErrorAndHowLongItWas) {
  const Directory directory;
  const auto start = Clock::now();
  expect(try_join(directory.socket(), 150), GW_ERR_UNAVAILABLE, "waited ");
  EXPECT_NE(last_error().find("there is no such socket"), std::string::npos) << gw_last_error();
  EXPECT_GE(Clock::now() - start, milliseconds(140));
  // What does not pass by itself is not waited for.
  std::ofstream(directory.socket()) << "a file";
  EXPECT_EQ(try_join(directory.socket(), 60'000).status, GW_ERR_UNAVAILABLE);
  EXPECT_EQ(last_error().find("waited"), std::string::npos) << gw_last_error();
}

TEST(Reach, TheEnvironmentCanSayHowLongToWait) {
  const Directory directory;
  ASSERT_EQ(setenv("GRADWIRE_WAIT_MS", "60", 1), 0);
  expect(try_join(directory.socket()), GW_ERR_UNAVAILABLE, "waited");
  EXPECT_EQ(try_join(directory.socket(), -1).error.find("waited"), std::string::npos) << gw_last_error();
  ASSERT_EQ(setenv("GRADWIRE_WAIT_MS", "soon", 1), 0);
  expect(try_join(directory.socket()), GW_ERR_INVALID, "GRADWIRE_WAIT_MS is \"soon\"");
  ASSERT_EQ(unsetenv("GRADWIRE_WAIT_MS"), 0);
}

TEST(Reach, ADaemonThatComesLaterIsWaitedFor) {
  FakeDaemon daemon;
  daemon.die();
  ASSERT_EQ(::unlink(daemon.socket_path().c_str()), 0);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(60));
    daemon.come_back();
  });
  EXPECT_EQ(try_join(daemon.socket_path(), 20'000).status, GW_OK) << gw_last_error();
  other.join();
}

TEST(Reach, ADaemonThatHangsUpWhileItRestartsIsAskedAgain) {
  Behaviour behaviour;
  behaviour.join_answer = " ";
  behaviour.close_after_answer = true;
  FakeDaemon leaving(behaviour);
  expect(try_join(leaving.socket_path(), 100), GW_ERR_UNAVAILABLE, "closed the connection");
}

TEST(Reach, AfterARestartALivingClientEndsAndJoinsAgain) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 4);
  daemon.die();
  daemon.come_back();
  gw_status status = gw_allreduce(bucket, GW_SUM);
  status = status == GW_OK ? gw_wait(bucket, -1, nullptr) : status;
  expect({status, gw_last_error()}, GW_ERR_UNAVAILABLE, "join again");
  EXPECT_EQ(gw_leave(job), GW_ERR_UNAVAILABLE);
  job = join_or_fail(daemon);
  bucket = bucket_or_fail(job, "b", 4);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK);
  EXPECT_EQ(gw_wait(bucket, 10'000, nullptr), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK) << gw_last_error();
}

}  // namespace
}  // namespace gradwire::client
