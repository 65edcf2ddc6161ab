// The daemon's configuration: plain values, how they are loaded, and how they are shown.
//
// The initialisers below are the defaults; names, limits and documentation of the options are the table in
// config/options.cc. All functions are thread-safe as long as the environment is not changed beside them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/result.h"
#include "config/policy.h"

namespace gradwire::config {

using Duration = std::chrono::microseconds;

struct NodeOptions {
  std::string name;                           // load_config fills in the host's name
  std::string runtime_dir = "/run/gradwire";  // absolute
  std::string socket;                         // load_config fills in <runtime_dir>/gradwired.sock
  std::string socket_group = "gradwire";      // may not exist on this machine: the daemon decides
  uint32_t socket_mode = 0660;
  bool operator==(const NodeOptions&) const = default;
};

struct PeerOptions {
  std::string listen = "0.0.0.0";    // an IPv4 or IPv6 address in digits
  uint16_t port = 7470;              // 0 = the system chooses
  std::string advertise;             // address or host name; empty = the daemon chooses
  std::string key_file;              // see config/psk.h; empty = no key, jobs stay on this node
  uint64_t max_document = 16 << 20;  // bytes
  bool operator==(const PeerOptions&) const = default;
};

struct ClockOptions {
  Duration peer_timeout = std::chrono::seconds(2);
  Duration operation_timeout = std::chrono::seconds(300);  // at least peer_timeout
  Duration stall_warning = std::chrono::seconds(5);
  Duration residual_ttl = std::chrono::seconds(600);
  Duration drain_timeout = std::chrono::seconds(5);  // zero = a stopping daemon ends its jobs at once
  bool operator==(const ClockOptions&) const = default;
};

struct TransportOptions {
  std::string kind = "ucx";
  std::string tls = "tcp,self";            // UCX_TLS
  std::string devices;                     // UCX_NET_DEVICES; empty = all
  std::map<std::string, std::string> ucx;  // further settings of UCX; names without the prefix UCX_
  uint64_t segment = 128 << 10;            // bytes of one message at most
  bool operator==(const TransportOptions&) const = default;
};

struct EngineOptions {
  std::optional<Duration> spin;     // nullopt = auto, zero = off
  std::optional<uint32_t> workers;  // nullopt = auto, 0 = everything on the engine's thread
  bool operator==(const EngineOptions&) const = default;
};

struct PlanOptions {
  std::string algorithm = "ring";  // auto, ring, direct
  std::string bypass = "never";    // auto, never, always
  std::string codecs;              // that may be taken instead of the policy's; separated by commas
  uint64_t segment = 1 << 20;      // bytes of a message at most; 0 = the planner chooses
  Duration remeasure = std::chrono::seconds(60);  // zero = at a job's start only
  bool operator==(const PlanOptions&) const = default;
};

struct QuotaOptions {
  uint64_t bytes_per_user = 64ULL << 30;
  uint32_t jobs_per_user = 64;
  uint32_t sessions_per_user = 1024;
  uint32_t buckets_per_job = 16384;
  bool operator==(const QuotaOptions&) const = default;
};

struct LogOptions {
  std::string level = "info";  // trace, debug, info, warn, error
  bool operator==(const LogOptions&) const = default;
};

struct Config {
  NodeOptions node;
  PeerOptions peers;
  ClockOptions clocks;
  TransportOptions transport;
  EngineOptions engine;
  QuotaOptions quotas;
  LogOptions log;
  PlanOptions plan;
  CompressionPolicy compression;
  bool operator==(const Config&) const = default;
};

struct Source {
  enum class Kind { kDefault, kEnvironment, kFile, kCommandLine };
  Kind kind = Kind::kDefault;
  std::string text = "default";  // "default", "environment NAME", "FILE:LINE", "command line"
};

struct LoadedConfig {
  Config config;
  // By option name ("clocks.peer_timeout"); every option of the table is there.
  std::map<std::string, Source, std::less<>> sources;
};

// Defaults, then $RUNTIME_DIRECTORY, then `file` (YAML, if given), then `overrides`
// ("clocks.peer_timeout=5s", the later wins). Fails with kNotFound, kPermissionDenied (the file cannot be
// read) or kInvalidArgument, whose message has one line for every error found: "FILE:LINE:COL: OPTION: what,
// what is allowed, an example".
Result<LoadedConfig> load_config(const std::optional<std::string>& file,
                                 const std::vector<std::string>& overrides);

struct Change {
  std::string option;         // "clocks.peer_timeout"
  std::string before, after;  // as set_value takes them
};

// The options in which the two differ, in the order of the table.
std::vector<Change> list_changes(const Config& before, const Config& after);

// The configuration in effect as YAML which load_config accepts and which gives an equal Config. A comment
// beside each value has the default (where it differs) and the source.
std::string dump_config(const LoadedConfig& loaded);

}  // namespace gradwire::config
