#include "client/src/environment.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "config/base/one_line.h"

namespace gradwire::client {
namespace {

using Variables = std::map<std::string, std::string>;

struct Resolved {
  gw_status status;
  Identity id;
  std::string error;
};

Resolved resolve(const Variables& variables, const gw_join_options* given = nullptr) {
  gw_join_options options{};
  Resolved resolved{};
  resolved.status = read_options(given, &options);
  if (resolved.status == GW_OK) {
    resolved.status = resolve_identity(
        options,
        [&](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        &resolved.id);
  }
  resolved.error = gw_last_error();
  return resolved;
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "exp42"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "198765"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                       {"SLURM_NNODES", "2"},  {"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_ID", "3"}, {"SLURM_JOB_NODELIST", "rack[011-014,020],login"}};

TEST(Environment, TorchrunTellsRankWorldRunAndRendezvous) {
  const Resolved r = resolve(kTorchrun);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rank, 3);
  EXPECT_EQ(r.id.world, 4);
  EXPECT_EQ(r.id.job, "exp42");
  EXPECT_EQ(r.id.run_id, "exp42");
  EXPECT_EQ(r.id.rendezvous, "node7");
  EXPECT_EQ(r.id.socket, "/run/gradwire/gradwired.sock");
  EXPECT_EQ(r.id.timeout_ms, 0);
}

TEST(Environment, TorchrunOnOneNodeNeedsNoRendezvous) {
  Variables variables = kTorchrun;
  variables["LOCAL_WORLD_SIZE"] = "4";
  variables["TORCHELASTIC_RUN_ID"] = "none";
  const Resolved r = resolve(variables);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rendezvous, "");
  EXPECT_EQ(r.id.job, "default");
}

TEST(Environment, OpenMpiTellsRankAndWorldButNotWhereRankZeroIs) {
  Resolved r = resolve(kOpenMpi);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rank, 1);
  EXPECT_EQ(r.id.world, 2);
  EXPECT_EQ(r.id.run_id, "198765");
  EXPECT_EQ(r.id.rendezvous, "");

  Variables spread = kOpenMpi;
  spread["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  r = resolve(spread);
  EXPECT_EQ(r.status, GW_ERR_INVALID);
  EXPECT_NE(r.error.find("GRADWIRE_RENDEZVOUS"), std::string::npos) << r.error;
  spread["GRADWIRE_RENDEZVOUS"] = "head:7000";
  r = resolve(spread);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rendezvous, "head:7000");
}

TEST(Environment, SlurmTellsRankWorldJobAndTheFirstNode) {
  Resolved r = resolve(kSlurm);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rank, 5);
  EXPECT_EQ(r.id.world, 8);
  EXPECT_EQ(r.id.job, "77");
  EXPECT_EQ(r.id.run_id, "3");
  EXPECT_EQ(r.id.rendezvous, "rack011");
  Variables variables = kSlurm;
  for (const auto& [list, first] :
       Variables{{"a1,b2", "a1"}, {"solo", "solo"}, {"n[7]", "n7"}, {"x[1-2]-ib,y", "x1-ib"}}) {
    variables["SLURM_JOB_NODELIST"] = list;
    EXPECT_EQ(resolve(variables).id.rendezvous, first);
  }
  variables["SLURM_NNODES"] = "1";
  EXPECT_EQ(resolve(variables).id.rendezvous, "");
}

TEST(Environment, OurVariablesComeFirstAndLaunchersAreNotMixed) {
  Variables variables = kTorchrun;
  variables.insert(kSlurm.begin(), kSlurm.end());
  Resolved r = resolve(variables);
  EXPECT_EQ(r.id.rank, 3);
  EXPECT_EQ(r.id.job, "exp42");
  variables.erase("WORLD_SIZE");
  r = resolve(variables);
  EXPECT_EQ(r.id.rank, 5);
  EXPECT_EQ(r.id.world, 8);
  variables.insert({{"GRADWIRE_RANK", "0"},
                    {"GRADWIRE_WORLD", "2"},
                    {"GRADWIRE_JOB", "mine"},
                    {"GRADWIRE_RUN_ID", "r1"},
                    {"GRADWIRE_RENDEZVOUS", "a:1"},
                    {"GRADWIRE_SOCKET", "/tmp/s"}});
  r = resolve(variables);
  EXPECT_EQ(r.id.rank, 0);
  EXPECT_EQ(r.id.world, 2);
  EXPECT_EQ(r.id.job, "mine");
  EXPECT_EQ(r.id.run_id, "r1");
  EXPECT_EQ(r.id.rendezvous, "a:1");
  EXPECT_EQ(r.id.socket, "/tmp/s");
}

TEST(Environment, TheCallersValuesComeBeforeAll) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.job = "given";
  options.run_id = "one";
  options.rank = 1;
  options.world = 3;
  options.rendezvous = "";
  options.socket = "/s";
  options.timeout_ms = -5;
  const Resolved r = resolve(kTorchrun, &options);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.job, "given");
  EXPECT_EQ(r.id.run_id, "one");
  EXPECT_EQ(r.id.rank, 1);
  EXPECT_EQ(r.id.world, 3);
  EXPECT_EQ(r.id.rendezvous, "");
  EXPECT_EQ(r.id.socket, "/s");
  EXPECT_EQ(r.id.timeout_ms, 0);
}

TEST(Environment, AZeroedStructTakesRankAndWorldFromTheEnvironment) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  const Resolved r = resolve(kTorchrun, &options);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rank, 3);
  EXPECT_EQ(r.id.world, 4);
}

TEST(Environment, ALoopbackMasterMeansThisNodeOnly) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.world = 2;
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_EQ(resolve({{"MASTER_ADDR", host}}, &options).id.rendezvous, "") << host;
  }
  EXPECT_EQ(resolve({{"MASTER_ADDR", "10.0.0.1"}}, &options).id.rendezvous, "10.0.0.1");
}

TEST(Environment, NonsenseIsRefusedWithItsNameAndValue) {
  for (const char* value : {"x", "-1", "4", "1.5", "99999999999999", " 1"}) {
    Variables variables = kTorchrun;
    variables["RANK"] = value;
    const Resolved r = resolve(variables);
    EXPECT_EQ(r.status, GW_ERR_INVALID) << value;
    EXPECT_TRUE(r.error.find("RANK") != std::string::npos || r.error.find("rank 4") != std::string::npos)
        << r.error;
  }
  Variables variables = kTorchrun;
  variables["GRADWIRE_WORLD"] = "0";
  EXPECT_EQ(resolve(variables).status, GW_ERR_INVALID);
  variables.erase("GRADWIRE_WORLD");
  variables["GRADWIRE_JOB"] = std::string(128, 'j');
  EXPECT_EQ(resolve(variables).status, GW_ERR_INVALID);
}

TEST(Environment, NothingKnownIsAnErrorThatSaysWhatToDo) {
  const Resolved r = resolve({});
  EXPECT_EQ(r.status, GW_ERR_INVALID);
  EXPECT_NE(r.error.find("GRADWIRE_RANK"), std::string::npos) << r.error;
}

TEST(JoinOptions, AStructOfAnotherVersionIsReadAsFarAsItGoes) {
  gw_join_options options{};
  options.struct_size = offsetof(gw_join_options, rendezvous);
  options.rank = 1;
  options.world = 2;
  options.rendezvous = reinterpret_cast<const char*>(1);  // not part of this caller's struct
  Resolved r = resolve({}, &options);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.rank, 1);

  struct Longer {
    gw_join_options known;
    uint64_t more;
  } longer{};
  longer.known.struct_size = sizeof(longer);
  longer.known.world = 1;
  EXPECT_EQ(resolve({}, &longer.known).status, GW_OK);
  longer.more = 1;
  EXPECT_EQ(resolve({}, &longer.known).status, GW_ERR_UNSUPPORTED);
  longer.known.struct_size = 3;
  EXPECT_EQ(resolve({}, &longer.known).status, GW_ERR_INVALID);
}

TEST(JoinOptions, WhatAnOlderCallerDoesNotHaveIsTheDefault) {
  gw_join_options options{};
  options.struct_size = offsetof(gw_join_options, wait_ms);
  options.world = 1;
  options.wait_ms = 77;
  options.flags = 0xffff;
  Resolved r = resolve({}, &options);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.wait_ms, 0);
  EXPECT_FALSE(r.id.fresh);
  options.struct_size = sizeof(options);
  r = resolve({}, &options);
  EXPECT_EQ(r.status, GW_ERR_UNSUPPORTED);
  EXPECT_NE(r.error.find("flags is 65535"), std::string::npos) << r.error;
  options.flags = GW_JOIN_FRESH;
  r = resolve({{"GRADWIRE_WAIT_MS", "5"}}, &options);
  ASSERT_EQ(r.status, GW_OK) << r.error;
  EXPECT_EQ(r.id.wait_ms, 77);
  EXPECT_TRUE(r.id.fresh);
  EXPECT_FALSE(r.id.leave_at_exit);
  options.flags = GW_JOIN_LEAVE_AT_EXIT;
  r = resolve({{"GRADWIRE_WAIT_MS", "5"}}, &options);
  EXPECT_TRUE(r.id.leave_at_exit);
  EXPECT_FALSE(r.id.fresh);
  options.wait_ms = 0;
  EXPECT_EQ(resolve({{"GRADWIRE_WAIT_MS", "5"}}, &options).id.wait_ms, 5);
  options.wait_ms = -1;
  EXPECT_EQ(resolve({{"GRADWIRE_WAIT_MS", "5"}}, &options).id.wait_ms, 0);
  EXPECT_EQ(resolve({{"GRADWIRE_WAIT_MS", "-5"}}).status, GW_ERR_INVALID);
}

TEST(Text, WellFormedTextPassesAndTheRestDoesNot) {
  EXPECT_FALSE(find_control(""));
  // a umlaut, euro, a smiling face, Arabic, Hebrew, a family joined by U+200D, and U+00A0
  EXPECT_FALSE(
      find_control("layer.0/\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \xd8\xb7\xd7\x90\xe2\x80\x8d\xc2\xa0"));
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xff", "a\xe2\x82"}) {
    EXPECT_TRUE(find_control(bad)) << bad;
  }
  // U+0000, U+001F, U+007F; U+0080, U+009B (CSI), U+009F; U+061C, U+200E, U+200F; U+2028, U+2029; U+202A,
  // U+202E; U+2066, U+2069
  using namespace std::string_view_literals;
  for (const std::string_view control :
       {"\0"sv, "\x1f"sv, "\x7f"sv, "\xc2\x80"sv, "\xc2\x9b"sv, "\xc2\x9f"sv, "\xd8\x9c"sv, "\xe2\x80\x8e"sv,
        "\xe2\x80\x8f"sv, "\xe2\x80\xa8"sv, "\xe2\x80\xa9"sv, "\xe2\x80\xaa"sv, "\xe2\x80\xae"sv,
        "\xe2\x81\xa6"sv, "\xe2\x81\xa9"sv}) {
    EXPECT_EQ(find_control("gr\xc3\xbcn" + std::string(control)), 5U) << control.size();
  }
}

TEST(Identity, NamesWithControlCharactersAreRefusedWithTheByte) {
  for (const char* name : {"a\nb",
                           "a\xc2\x9b"
                           "2J",
                           "a\xe2\x80\xae", "a\xff"}) {
    for (const char* variable : {"GRADWIRE_JOB", "GRADWIRE_RUN_ID"}) {
      const auto r = resolve({{"GRADWIRE_RANK", "0"}, {"GRADWIRE_WORLD", "1"}, {variable, name}});
      EXPECT_EQ(r.status, GW_ERR_INVALID) << name;
      EXPECT_NE(std::string(gw_last_error()).find("byte 1"), std::string::npos) << gw_last_error();
    }
  }
}

}  // namespace
}  // namespace gradwire::client
