#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "config/config.h"
#include "tests/tools/synthetic_page.h"
#include "tools/discover.h"
#include "tools/run/daemons.h"
#include "tools/run/environment.h"
#include "tools/run/locate.h"
#include "tools/run/process.h"
#include "tools/run/relay.h"

namespace gradwire::tools {
namespace {

using testing::HasSubstr;

std::string read_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

std::string read_all(int fd) {
  std::string out;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    out.append(buffer, static_cast<size_t>(got));
  }
  return out;
}

void wait_for(Process& process) {
  for (int i = 0; i < 2000 && !process.check(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Process shell(const std::string& script, int out) {
  SpawnSpec spec;
  spec.argv = {"sh", "-c", script};
  spec.environment = current_environment();
  spec.environment["GREETING"] = "hello";
  spec.stdout_fd = spec.stderr_fd = out;
  Result<Process> process = Process::spawn(spec);
  EXPECT_TRUE(process.ok()) << process.status().message();
  return *process;
}

TEST(Process, GivesOutputEnvironmentAndExitCode) {
  Pipe pipe = make_pipe().value();
  Process process = shell("echo $GREETING; exit 3", pipe.write.get());
  pipe.write.reset();
  EXPECT_EQ(read_all(pipe.read.get()), "hello\n");
  wait_for(process);
  ASSERT_FALSE(process.running());
  EXPECT_EQ(process.exit_code(), 3);
  EXPECT_EQ(process.describe_end(), "exited with code 3");
}

TEST(Process, ASignalIs128PlusItsNumber) {
  Process process = shell("kill -9 $$", STDERR_FILENO);
  wait_for(process);
  ASSERT_FALSE(process.running());
  EXPECT_EQ(process.exit_code(), 137);
  EXPECT_THAT(process.describe_end(), HasSubstr("signal 9"));
}

TEST(Process, WhatItStartedEndsWithIt) {
  Pipe pipe = make_pipe().value();
  Process process = shell("sleep 100 & exit 0", pipe.write.get());
  pipe.write.reset();
  wait_for(process);
  EXPECT_EQ(read_all(pipe.read.get()), "");  // returns only when sleep, which holds the pipe, is gone
}

TEST(Process, AProgramThatIsNotThereIsAnErrorOfSpawn) {
  SpawnSpec spec;
  spec.argv = {"/no/such/program"};
  spec.stdout_fd = spec.stderr_fd = STDERR_FILENO;
  const Status status = Process::spawn(spec).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/no/such/program"));
}

TEST(LineRelay, MarksEveryLineAndTheUnfinishedLast) {
  Pipe in = make_pipe().value();
  Pipe out = make_pipe().value();
  LineRelay relay(std::move(in.read), out.write.get(), "[7] ");
  ASSERT_TRUE(write_all(in.write.get(), "one\ntw"));
  EXPECT_TRUE(relay.forward());
  ASSERT_TRUE(write_all(in.write.get(), "o\n\nlast"));
  EXPECT_TRUE(relay.forward());
  EXPECT_TRUE(relay.open());
  in.write.reset();
  EXPECT_TRUE(relay.forward());
  EXPECT_FALSE(relay.open());
  out.write.reset();
  EXPECT_EQ(read_all(out.read.get()), "[7] one\n[7] two\n[7] \n[7] last\n");
}

TEST(LineRelay, PassesVeryLongLinesOnInParts) {
  Pipe in = make_pipe().value();
  Pipe out = make_pipe().value();
  LineRelay relay(std::move(in.read), out.write.get(), "");
  std::string got;
  std::thread reader([&] { got = read_all(out.read.get()); });
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(write_all(in.write.get(), std::string(10'000, 'x')));
    EXPECT_TRUE(relay.forward());
  }
  in.write.reset();
  EXPECT_TRUE(relay.forward());
  out.write.reset();
  reader.join();
  EXPECT_EQ(std::count(got.begin(), got.end(), 'x'), 200'000);
}

TEST(Daemons, TheConfigurationIsOneThatTheDaemonTakes) {
  const TemporaryFolder folder;
  const Result<std::string> key = write_key(folder.path());
  ASSERT_TRUE(key.ok());
  const std::string dir = folder.path() + "/it's here";
  const std::string file = folder.path() + "/config.yaml";
  std::ofstream(file) << daemon_yaml("node1", dir, 23456, *key);
  const Result<config::LoadedConfig> loaded = config::load_config(file, {"compression.codec=l8"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.node.name, "node1");
  EXPECT_EQ(loaded->config.node.runtime_dir, dir);
  EXPECT_EQ(loaded->config.node.socket, dir + "/gradwired.sock");
  EXPECT_EQ(loaded->config.node.socket_mode, 0600u);
  EXPECT_NE(loaded->config.node.socket_group, config::NodeOptions{}.socket_group);
  EXPECT_EQ(loaded->config.peers.listen, "127.0.0.1");
  EXPECT_EQ(loaded->config.peers.port, 23456);
  EXPECT_EQ(loaded->config.peers.key_file, *key);
}

TEST(Daemons, TheKeyIsSecretAndFreshEveryTime) {
  const TemporaryFolder one, two;
  const std::string first = *write_key(one.path());
  const std::string second = *write_key(two.path());
  struct stat info {};
  ASSERT_EQ(::stat(first.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(read_file(first).size(), 65u);
  EXPECT_NE(read_file(first), read_file(second));
}

TEST(Daemons, PortsAreBelowTheSystemsOwnRange) {
  for (int i = 0; i < 20; ++i) {
    const Result<uint16_t> port = free_port();
    ASSERT_TRUE(port.ok());
    EXPECT_GE(*port, 20000);
    EXPECT_LT(*port, 32000);
  }
}

TEST(Daemons, ATooLongFolderIsRefusedBeforeAnythingStarts) {
  const Result<Daemon> daemon =
      start_daemon({"gradwired", "/tmp/" + std::string(120, 'x'), 1, {}}, 0, "/key");
  ASSERT_FALSE(daemon.ok());
  EXPECT_THAT(daemon.status().message(), HasSubstr("TMPDIR"));
}

TEST(RankEnvironment, SaysThePlaceInEveryLaunchersWords) {
  RankPlace place;
  place.rank = 3;
  place.world = 4;
  place.local_rank = 1;
  place.local_ranks = 2;
  place.node = 1;
  place.socket = "/run/x/gradwired.sock";
  place.rendezvous = "127.0.0.1:20001";
  place.job = "run";
  place.run_id = "abc";
  place.master_port = 20002;
  place.library = "/lib/libgradwire.so";
  place.folders = {"/python", "/links", "/programs"};
  const Environment got = rank_environment({{"PYTHONPATH", "/own"}, {"RANK", "9"}}, place);
  const Environment want{{"GRADWIRE_SOCKET", "/run/x/gradwired.sock"},
                         {"GRADWIRE_RENDEZVOUS", "127.0.0.1:20001"},
                         {"GRADWIRE_JOB", "run"},
                         {"GRADWIRE_RUN_ID", "abc"},
                         {"GRADWIRE_RANK", "3"},
                         {"GRADWIRE_WORLD", "4"},
                         {"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", "1"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "20002"},
                         {"OMP_NUM_THREADS", "1"},
                         {"GRADWIRE_LIBRARY", "/lib/libgradwire.so"},
                         {"PYTHONPATH", "/python:/own"},
                         {"LD_LIBRARY_PATH", "/links"},
                         {"PATH", "/programs:/usr/local/bin:/usr/bin:/bin"}};
  EXPECT_EQ(got, want);
  EXPECT_EQ(rank_environment({{"OMP_NUM_THREADS", "8"}}, place).at("OMP_NUM_THREADS"), "8");
}

TEST(RankEnvironment, SearchFoldersHoldOurPartsOnly) {
  const TemporaryFolder root, installed;
  std::ofstream(installed.path() + "/libgradwire.so.0.1.0") << "library";
  std::ofstream(installed.path() + "/libfoo.so") << "somebody else's";
  const auto made =
      make_search_folders(root.path(), "/bin/sh", installed.path() + "/libgradwire.so.0.1.0", "");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->python, "");
  EXPECT_EQ(read_file(made->library + "/libgradwire.so.0"), "library");
  EXPECT_EQ(read_file(made->library + "/libgradwire.so"), "library");
  EXPECT_FALSE(std::filesystem::exists(made->library + "/libfoo.so"));
  EXPECT_TRUE(std::filesystem::exists(made->programs + "/gradwire"));
  EXPECT_FALSE(make_search_folders(root.path() + "/none", "/bin/sh", "", "").ok());
}

TEST(Discover, FindsOnlyHeldPagesInFoldersOfOnesOwn) {
  const TemporaryFolder parent;
  SyntheticPage page;
  const auto place = [&](const std::string& run, const std::string& node, bool held) {
    const std::string dir = parent.path() + "/" + run + "/" + node;
    std::filesystem::create_directories(dir);
    if (held) {
      std::filesystem::create_hard_link(page.path(), dir + "/counters");
    } else {
      std::ofstream(dir + "/counters") << "page";
    }
    return dir;
  };
  const std::string ten = place("gradwire-run.a", "node10", true);
  const std::string two = place("gradwire-run.a", "node2", true);
  place("gradwire-run.b", "node0", false);
  place("other", "node0", true);
  place("gradwire-run.open", "node0", true);
  std::filesystem::permissions(parent.path() + "/gradwire-run.open", std::filesystem::perms(0777));
  std::filesystem::create_symlink(parent.path() + "/gradwire-run.a", parent.path() + "/gradwire-run.link");
  EXPECT_EQ(find_run_daemons(parent.path()), (std::vector<std::string>{two, ten}));
  EXPECT_TRUE(find_run_daemons(parent.path() + "/none").empty());
}

TEST(Locate, FindsLibraryAndPackageWhereverTheyWereInstalled) {
  const TemporaryFolder root;
  const std::string bin = root.path() + "/bin";
  std::filesystem::create_directories(bin);
  EXPECT_EQ(find_client_library(bin), "");
  EXPECT_EQ(find_python_package(bin), "");
  std::filesystem::create_directories(root.path() + "/lib/some-triplet");
  std::filesystem::create_directories(root.path() + "/lib/python3.12/site-packages/gradwire");
  std::ofstream(root.path() + "/lib/some-triplet/libgradwire.so.0") << "x";
  EXPECT_EQ(find_client_library(bin), root.path() + "/lib/some-triplet/libgradwire.so.0");
  EXPECT_EQ(find_python_package(bin), root.path() + "/lib/python3.12/site-packages/gradwire");
}

TEST(Locate, FindsTheDaemonOfTheBuildTreeAndOfAnInstallation) {
  const TemporaryFolder root;
  std::filesystem::create_directories(root.path() + "/tools");
  const std::string folder = root.path() + "/tools";
  EXPECT_THAT(find_daemon(folder).status().message(), HasSubstr("--daemon"));
  for (const char* place : {"/libexec/gradwire", "/sbin", "/daemon"}) {
    std::filesystem::create_directories(root.path() + place);
    const std::string path = root.path() + place + "/gradwired";
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), 0755);
    EXPECT_EQ(*find_daemon(folder), path);
  }
}

}  // namespace
}  // namespace gradwire::tools
