#include "tests/config/support.h"

namespace gradwire::config {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Load : public ConfigTest {};

TEST_F(Load, WithoutFileGivesTheDefaults) {
  const Result<LoadedConfig> loaded = load_config(std::nullopt, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Config expected;
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  expected.node.name = host;
  expected.node.socket = "/run/gradwire/gradwired.sock";
  EXPECT_EQ(loaded.value().config, expected);
  for (const auto& [name, source] : loaded.value().sources) {
    EXPECT_EQ(source.text, "default") << name;
  }
}

TEST_F(Load, EmptyFilesAndEmptySectionsAreTheDefaults) {
  const Config defaults = load_config(std::nullopt, {}).value().config;
  for (const char* text : {"", "\n", "# nothing\n", "---\n", "{}", "clocks:\n",
                           "clocks:\n  # peer_timeout: 3s\nlog:\n", "\xEF\xBB\xBF"}) {
    const Result<LoadedConfig> loaded = load(text);
    ASSERT_TRUE(loaded.ok()) << text << loaded.status().message();
    EXPECT_EQ(loaded.value().config, defaults) << text;
  }
}

TEST_F(Load, ReadsEverySection) {
  const Result<LoadedConfig> loaded = load(R"(
node:
  name: "worker 1"
  runtime_dir: /srv/gradwire
  socket_group: hpc
  socket_mode: 0600
peers: {listen: "::", port: 1234, advertise: w1.example, key_file: /etc/key, max_document: 1MiB}
clocks:
  peer_timeout: 500ms
  operation_timeout: 1.5min
  stall_warning: 1s
  residual_ttl: 0s
transport:
  tls: rc,self
  devices: mlx5_0:1,mlx5_1:1
  ucx: {TCP_CM_REUSEADDR: y, RC_TX_QUEUE_LEN: 512}
  segment: 65536KiB
)",
                                           {"transport.segment=262144"});
  EXPECT_FALSE(loaded.ok()) << "64 MiB in the file is still an error where the command line overrides it";
  const Result<LoadedConfig> good = load(R"(
node: {name: "worker 1", runtime_dir: /srv/gradwire, socket_group: hpc, socket_mode: 0600}
peers: {listen: "::", port: 1234, advertise: w1.example, key_file: /etc/key, max_document: 1MiB}
clocks: {peer_timeout: 500ms, operation_timeout: 1.5min, stall_warning: 1s, residual_ttl: 0s}
transport:
  tls: rc,self
  devices: mlx5_0:1,mlx5_1:1
  ucx: {TCP_CM_REUSEADDR: y, RC_TX_QUEUE_LEN: 512}
  segment: 256KiB
engine: {spin: 50us, workers: 3}
quotas: {bytes_per_user: 1GiB, jobs_per_user: 2, buckets_per_job: 3}
log: {level: debug}
compression:
  codec: laco
  density: 0.001
  rules:
    - {match: "*.bias", codec: none}
    - match: embed.*
      codec: lads
      density: 1e-4
      norm: current
)");
  ASSERT_TRUE(good.ok()) << good.status().message();
  const Config& c = good.value().config;
  EXPECT_EQ(c.node.name, "worker 1");
  EXPECT_EQ(c.node.socket, "/srv/gradwire/gradwired.sock");
  EXPECT_EQ(c.node.socket_mode, 0600U);
  EXPECT_EQ(c.peers.listen, "::");
  EXPECT_EQ(c.peers.port, 1234);
  EXPECT_EQ(c.peers.max_document, 1048576U);
  EXPECT_EQ(c.clocks.peer_timeout, milliseconds(500));
  EXPECT_EQ(c.clocks.operation_timeout, seconds(90));
  EXPECT_EQ(c.clocks.residual_ttl, seconds(0));
  EXPECT_EQ(c.transport.devices, "mlx5_0:1,mlx5_1:1");
  EXPECT_EQ(c.transport.ucx.at("RC_TX_QUEUE_LEN"), "512");
  EXPECT_EQ(c.transport.segment, 262144U);
  EXPECT_EQ(c.engine.spin, std::chrono::microseconds(50));
  EXPECT_EQ(c.engine.workers, 3U);
  EXPECT_EQ(c.quotas.buckets_per_job, 3U);
  EXPECT_EQ(c.log.level, "debug");
  ASSERT_EQ(c.compression.rules.size(), 2U);
  EXPECT_EQ(c.compression.rules[1].set.density, 1e-4);
  EXPECT_EQ(c.compression.rules[1].set.norm, "current");
  EXPECT_FALSE(c.compression.rules[0].set.density.has_value());
  EXPECT_EQ(good.value().sources.at("engine.workers").text, path() + ":10");
}

TEST_F(Load, TheCommandLineWinsOverTheFileAndTheLastOverTheFirst) {
  const Result<LoadedConfig> loaded = load(
      "clocks: {peer_timeout: 3s}\ntransport: {ucx: {A: 1, B: 2}}\n",
      {"clocks.peer_timeout=4s", "clocks.peer_timeout=5s", "compression.codec=laco", "transport.ucx.B=x=y",
       "node.name=", "node.name=n", "compression.rules=[{match: '*', codec: l8}]"});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(
      loaded.status().message(),
      "command line: node.name: '' is empty; allowed 1 to 255 bytes of text; write for example worker-3");
  const Result<LoadedConfig> good =
      load("clocks: {peer_timeout: 3s}\ntransport: {ucx: {A: 1, B: 2}}\n",
           {"clocks.peer_timeout=4s", "clocks.peer_timeout=5s", "compression.codec=laco",
            "transport.ucx.B=x=y", "peers.advertise=", "compression.rules=[{match: '*', codec: l8}]"});
  ASSERT_TRUE(good.ok()) << good.status().message();
  const Config& c = good.value().config;
  EXPECT_EQ(c.clocks.peer_timeout, seconds(5));
  EXPECT_EQ(c.compression.defaults.codec, "laco");
  EXPECT_EQ(c.transport.ucx, (std::map<std::string, std::string>{{"A", "1"}, {"B", "x=y"}}));
  EXPECT_EQ(resolve_policy(c.compression, "layer").codec, "l8");
  EXPECT_EQ(good.value().sources.at("clocks.peer_timeout").text, "command line");
  EXPECT_EQ(good.value().sources.at("transport.ucx").kind, Source::Kind::kCommandLine);
}

TEST_F(Load, TheRuntimeDirectoryComesFromSystemdUnlessTheFileNamesOne) {
  setenv("RUNTIME_DIRECTORY", "/run/a:/run/b", 1);
  const Result<LoadedConfig> loaded = load("");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded.value().config.node.runtime_dir, "/run/a");
  EXPECT_EQ(loaded.value().config.node.socket, "/run/a/gradwired.sock");
  EXPECT_EQ(loaded.value().sources.at("node.runtime_dir").text, "environment RUNTIME_DIRECTORY");
  EXPECT_EQ(load("node: {runtime_dir: /run/c}").value().config.node.runtime_dir, "/run/c");
  setenv("RUNTIME_DIRECTORY", "relative", 1);
  EXPECT_EQ(error(""),
            "environment RUNTIME_DIRECTORY: node.runtime_dir: 'relative' is not an absolute path; allowed an "
            "absolute "
            "path of at most 90 bytes; write for example /run/gradwire");
}

TEST_F(Load, SpinAndWorkersKnowWords) {
  EXPECT_EQ(load("engine: {spin: auto, workers: auto}").value().config.engine, EngineOptions());
  EXPECT_EQ(load("engine: {spin: off}").value().config.engine.spin, Duration(0));
  EXPECT_EQ(load("engine: {workers: 0}").value().config.engine.workers, 0U);
}

}  // namespace
}  // namespace gradwire::config
