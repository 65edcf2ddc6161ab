#include "tools/run/daemons.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "tools/counters_reader.h"
#include "tools/run/relay.h"

namespace gradwire::tools {
namespace {

constexpr uint16_t kFirstPort = 20000;
constexpr uint16_t kPorts = 12000;  // the system's own range starts at 32768
constexpr int kPortTries = 200;
constexpr size_t kKeyBytes = 32;
constexpr size_t kLongestSocketPath = 107;
constexpr std::chrono::seconds kStopPatience{5};

Status system_failure(const std::string& what) {
  return {Code::kResourceExhausted, what + ": " + std::strerror(errno)};
}

std::string yaml_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("''") : std::string(1, c);
  }
  return out + "'";
}

// The group that the socket has anyway; a group that is missing would be warned of.
std::string own_group() {
  const group* found = ::getgrgid(::getegid());
  return found == nullptr ? "" : "  socket_group: " + yaml_quoted(found->gr_name) + "\n";
}

Status write_file(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0 || !write_all(file.get(), text)) {
    return system_failure("cannot write " + path);
  }
  return {};
}

}  // namespace

Result<uint16_t> free_port() {
  for (int i = 0; i < kPortTries; ++i) {
    uint16_t draw = 0;
    if (::getrandom(&draw, sizeof(draw), 0) != sizeof(draw)) {
      return system_failure("no random numbers");
    }
    const uint16_t port = static_cast<uint16_t>(kFirstPort + draw % kPorts);
    const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (probe.get() >= 0 &&
        ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return port;
    }
  }
  return Status(Code::kResourceExhausted, "no free port on 127.0.0.1 between 20000 and 31999");
}

Result<std::string> write_key(const std::string& folder) {
  unsigned char bytes[kKeyBytes];
  if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    return system_failure("no random numbers for the key");
  }
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  const std::string path = folder + "/key";
  GRADWIRE_RETURN_IF_ERROR(write_file(path, hex + "\n"));
  return path;
}

std::string daemon_yaml(const std::string& name, const std::string& runtime_dir, uint16_t port,
                        const std::string& key_file) {
  return "node:\n  name: " + name + "\n  runtime_dir: " + yaml_quoted(runtime_dir) +
         "\n  socket_mode: '0600'\n" + own_group() +
         "peers:\n  listen: 127.0.0.1\n  port: " + std::to_string(port) +
         "\n  advertise: 127.0.0.1\n  key_file: " + yaml_quoted(key_file) +
         "\ntransport:\n  tls: 'tcp,self'\n  devices: lo\n";
}

Result<Daemon> start_daemon(const DaemonOptions& options, uint32_t index, const std::string& key_file) {
  const std::string name = "node" + std::to_string(index);
  const std::string dir = options.folder + "/" + name;
  const std::string socket = dir + "/gradwired.sock";
  if (socket.size() > kLongestSocketPath) {
    return Status(Code::kInvalidArgument, "the socket's path " + socket + " has more than " +
                                              std::to_string(kLongestSocketPath) +
                                              " bytes; set TMPDIR to a shorter one");
  }
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("cannot make " + dir);
  }
  const Result<uint16_t> port = free_port();
  if (!port.ok()) {
    return port.status();
  }
  const std::string config = dir + "/gradwired.yaml";
  ::unlink(config.c_str());
  GRADWIRE_RETURN_IF_ERROR(write_file(config, daemon_yaml(name, dir, *port, key_file)));
  const std::string log = dir + "/gradwired.log";
  const UniqueFd log_file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (log_file.get() < 0) {
    return system_failure("cannot write " + log);
  }
  SpawnSpec spec;
  spec.argv = {options.binary, "--config", config};
  for (const std::string& setting : options.settings) {
    spec.argv.insert(spec.argv.end(), {"--set", setting});
  }
  spec.environment = current_environment();
  spec.stdout_fd = spec.stderr_fd = log_file.get();
  Result<Process> process = Process::spawn(spec);
  if (!process.ok()) {
    return process.status();
  }
  return Daemon{name, dir, socket, log, *port, *process};
}

bool is_ready(const Daemon& daemon) {
  const Result<CountersPage> page = read_counters(counters_path(daemon.runtime_dir));
  if (!page.ok() || !page->locked || page->heartbeat_ns == 0) {
    return false;
  }
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, daemon.socket.c_str(), daemon.socket.size() + 1);
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

std::string log_tail(const Daemon& daemon, size_t lines) {
  std::deque<std::string> tail;
  std::ifstream log(daemon.log);
  for (std::string line; std::getline(log, line);) {
    tail.push_back(line);
    if (tail.size() > lines) {
      tail.pop_front();
    }
  }
  std::string out;
  for (const std::string& line : tail) {
    out += "  " + daemon.name + ": " + line + "\n";
  }
  return out;
}

void stop_daemons(std::vector<Daemon>* daemons) {
  const auto signal_all = [&](int number) {
    for (Daemon& daemon : *daemons) {
      daemon.process.check();
      daemon.process.signal(number);
    }
  };
  const auto any_left = [&] {
    bool left = false;
    for (Daemon& daemon : *daemons) {
      daemon.process.check();
      left = left || daemon.process.running();
    }
    return left;
  };
  signal_all(SIGTERM);
  const SteadyTime deadline = std::chrono::steady_clock::now() + kStopPatience;
  while (any_left()) {
    if (std::chrono::steady_clock::now() > deadline) {
      signal_all(SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace gradwire::tools
