#include "tests/control/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace gradwire::control::testing {
namespace {

using Clock = std::chrono::steady_clock;

uint16_t free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(probe, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("free_port");
    std::abort();
  }
  close(probe);
  return ntohs(address.sin_port);
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  char name[] = "/tmp/gradwire-daemon-XXXXXX";
  path_ = mkdtemp(name);
  const std::string key = path_ + "/key";
  std::ofstream(key) << "a key for one test on loopback\n";
  chmod(key.c_str(), 0600);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !status_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0 && !status_) {
    kill(pid_, number);
  }
}

std::optional<int> ChildProcess::wait(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (!status_) {
    int raw = 0;
    if (waitpid(pid_, &raw, WNOHANG) == pid_) {
      status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    } else if (Clock::now() > end) {
      break;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return status_;
}

ChildProcess run_program(const std::vector<std::string>& arguments, const std::string& log) {
  const pid_t pid = fork();
  if (pid == 0) {
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return ChildProcess(pid);
}

std::vector<std::string> daemon_arguments(const std::string& root, const std::string& name, uint16_t port,
                                          const std::vector<std::string>& settings) {
  std::vector<std::string> arguments = {GRADWIRED_BINARY};
  std::vector<std::string> all = {"node.name=" + name,
                                  "node.runtime_dir=" + root + "/" + name,
                                  "peers.listen=127.0.0.1",
                                  "peers.port=" + std::to_string(port),
                                  "peers.key_file=" + root + "/key",
                                  "transport.devices=lo",
                                  "clocks.peer_timeout=1s"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  return arguments;
}

DaemonProcess::DaemonProcess(const std::string& root, std::string its_name,
                             const std::vector<std::string>& settings)
    : name(std::move(its_name)),
      directory(root + "/" + name),
      socket(directory + "/gradwired.sock"),
      port(free_port()),
      process(run_program(daemon_arguments(root, name, port, settings), root + "/" + name + ".log")) {}

bool DaemonProcess::ready(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (Clock::now() < end && !process.wait(std::chrono::milliseconds(0))) {
    const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket.c_str());
    const bool connected = connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(probe);
    if (connected) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::string DaemonProcess::log() const {
  std::ifstream file(directory + ".log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

size_t open_descriptors(pid_t pid) {
  std::error_code ignored;
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    ++count;
  }
  return count;
}

std::chrono::milliseconds processor_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 0; i < 11; ++i) {
    fields >> skipped;
  }
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return std::chrono::milliseconds((user + system) * 1000 / sysconf(_SC_CLK_TCK));
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Trainer::Trainer(const std::function<Outcome()>& body) : process(-1) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    std::abort();
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    const Outcome outcome = body();
    std::ostringstream text;
    text << outcome.status << ' ' << outcome.value << ' ' << outcome.message << '\n';
    const std::string line = text.str();
    _exit(write(ends[1], line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1);
  }
  close(ends[1]);
  pipe_ = ends[0];
  process = ChildProcess(pid);
}

Trainer::~Trainer() {
  if (pipe_ >= 0) {
    close(pipe_);
  }
}

std::optional<Outcome> Trainer::outcome(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  std::string text;
  while (text.empty() || text.back() != '\n') {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd entry{pipe_, POLLIN, 0};
    char buffer[4096];
    if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) != 1) {
      return std::nullopt;
    }
    const ssize_t bytes = read(pipe_, buffer, sizeof(buffer));
    if (bytes <= 0) {
      return std::nullopt;
    }
    text.append(buffer, static_cast<size_t>(bytes));
  }
  Outcome outcome;
  std::istringstream line(text);
  line >> outcome.status >> outcome.value;
  line.get();
  std::getline(line, outcome.message);
  return outcome;
}

gw_status join_job(const char* name, int rank, int world, const std::string& socket,
                   const std::string& rendezvous, gw_job** job, int64_t timeout_ms) {
  gw_join_options options{};
  options.struct_size = sizeof(options);
  options.job = name;
  options.run_id = "0";
  options.rank = rank;
  options.world = world;
  options.rendezvous = rendezvous.c_str();
  options.socket = socket.c_str();
  options.timeout_ms = timeout_ms;
  return gw_join(&options, job);
}

}  // namespace gradwire::control::testing
