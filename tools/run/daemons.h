// A set of gradwired processes on this machine: their folders, configurations, ports and key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/base/result.h"
#include "tools/run/process.h"

namespace gradwire::tools {

struct DaemonOptions {
  std::string binary;
  std::string folder;  // exists, ours alone
  uint32_t nodes = 1;
  std::vector<std::string> settings;  // KEY=VALUE, after our own
};

struct Daemon {
  std::string name;         // "node0"
  std::string runtime_dir;  // <folder>/node0
  std::string socket;
  std::string log;
  uint16_t port = 0;  // control port on 127.0.0.1
  Process process;
};

// A TCP port on 127.0.0.1 that nobody listens on, outside the range that the system gives to connections.
Result<uint16_t> free_port();

// Writes the key into `folder`; its path.
Result<std::string> write_key(const std::string& folder);

// What a daemon of the set is configured with, as YAML.
std::string daemon_yaml(const std::string& name, const std::string& runtime_dir, uint16_t port,
                        const std::string& key_file);

Result<Daemon> start_daemon(const DaemonOptions& options, uint32_t index, const std::string& key_file);

// True when trainers can attach: the counters page is held and has a heartbeat, and the socket accepts.
bool is_ready(const Daemon& daemon);

// The last `lines` lines of a log, each with two blanks and the daemon's name in front.
std::string log_tail(const Daemon& daemon, size_t lines);

// SIGTERM, then SIGKILL for what is there after five seconds.
void stop_daemons(std::vector<Daemon>* daemons);

}  // namespace gradwire::tools
