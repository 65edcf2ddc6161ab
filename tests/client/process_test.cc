// Children of a process that has joined: forked ones are refused everything, started ones inherit nothing.
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "tests/client/client_fixture.h"

namespace gradwire::client {
namespace {

// Counts the calls that a child was not refused. Ends with both handles freed.
int unrefused(gw_job* job, gw_bucket* bucket) {
  int done = 0;
  uint64_t first = 0;
  uint64_t elements = 0;
  gw_bucket* other = nullptr;
  const gw_layer layer{"w", 1};
  gw_traffic traffic{};
  traffic.struct_size = sizeof(traffic);
  gw_progress progress{};
  progress.struct_size = sizeof(progress);
  const gw_status statuses[] = {
      gw_bucket_create(job, "c", GW_FLOAT32, &layer, 1, 0, &other),
      gw_allreduce(bucket, GW_SUM),
      gw_allreduce_scaled(bucket, GW_SUM, 2.0),
      gw_broadcast(bucket, 0),
      gw_allgather(bucket),
      gw_reduce_scatter(bucket, GW_SUM),
      gw_bucket_shard(bucket, 0, &first, &elements),
      gw_wait(bucket, 1000, nullptr),
      gw_wait_any(job, 1000, &other, nullptr),
      gw_test(bucket, &done, nullptr),
      gw_barrier(job, 1000),
      gw_job_traffic(job, &traffic),
      gw_previous_epoch(job, "b", &progress),
      gw_bucket_destroy(bucket),
  };
  int wrong = 0;
  for (const gw_status status : statuses) {
    wrong += status != GW_ERR_FORKED;
  }
  wrong += gw_bucket_gradient(bucket) != nullptr;
  wrong += gw_bucket_result(bucket) != nullptr;
  wrong += gw_bucket_elements(bucket) != 0;
  wrong += gw_bucket_bytes(bucket) != 0;
  wrong += *gw_bucket_codec(bucket) != '\0';
  wrong += gw_rank(job) != -1;
  wrong += gw_world(job) != -1;
  wrong += gw_local_ranks(job) != -1;
  wrong += gw_epoch(job) != 0;
  wrong += gw_leave(job) != GW_ERR_FORKED;
  wrong += std::strstr(gw_last_error(), "parent") == nullptr;
  return wrong;
}

TEST(Fork, AChildIsRefusedByEveryFunctionAndTheParentGoesOn) {
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  gw_bucket* bucket = bucket_or_fail(job, "b", 8);
  const pid_t child = fork();
  if (child == 0) {
    _exit(unrefused(job, bucket));
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(gw_allreduce(bucket, GW_SUM), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_wait(bucket, 5000, nullptr), GW_OK) << gw_last_error();
  EXPECT_EQ(gw_leave(job), GW_OK) << gw_last_error();
}

// What the process's descriptors are open on.
std::set<std::string> descriptors() {
  std::set<std::string> found;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    char target[256] = {};
    if (readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1) > 0) {
      found.insert(target);
    }
  }
  closedir(directory);
  return found;
}

std::string output_of(const char* program, std::vector<std::string> arguments) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> list;
  for (std::string& argument : arguments) {
    list.push_back(argument.data());
  }
  list.push_back(nullptr);
  pid_t child = -1;
  EXPECT_EQ(posix_spawnp(&child, program, &actions, nullptr, list.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

TEST(Exec, AProgramThatIsStartedInheritsNoDescriptor) {
  const std::set<std::string> before = descriptors();
  FakeDaemon daemon;
  gw_job* job = join_or_fail(daemon);
  (void)bucket_or_fail(job, "b", 8);
  const std::set<std::string> joined = descriptors();
  const std::string inherited = output_of("ls", {"ls", "-l", "/proc/self/fd"});
  EXPECT_NE(inherited.find(" -> "), std::string::npos) << inherited;
  int fresh = 0;
  for (const std::string& target : joined) {
    if (!before.contains(target) && target.rfind("/proc", 0) != 0) {
      ++fresh;
      // The names of anonymous inodes are not unique, those of sockets and memory are.
      EXPECT_TRUE(target.rfind("anon_inode", 0) == 0 || inherited.find(target) == std::string::npos)
          << target;
    }
  }
  EXPECT_GE(fresh, 2);  // the control socket and the bell, at least
  EXPECT_EQ(inherited.find("memfd:"), std::string::npos) << inherited;
  EXPECT_EQ(gw_leave(job), GW_OK);
}

}  // namespace
}  // namespace gradwire::client
