// Real daemons and trainers as child processes on loopback. Everything that was started is gone, and its
// directory removed, when the owner goes out of scope.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/include/gradwire/gradwire.h"

namespace gradwire::control::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Killed and reaped at the end of its life.
class ChildProcess {
 public:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept : pid_(other.pid_), status_(other.status_) { other.pid_ = -1; }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    return *this;
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // The exit code, 128 + signal, or nothing if it still runs after `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit);

 private:
  pid_t pid_;
  std::optional<int> status_;
};

ChildProcess run_program(const std::vector<std::string>& arguments, const std::string& log);

// A daemon `name` in its own directory under `root`; `port` is its peer port.
struct DaemonProcess {
  DaemonProcess(const std::string& root, std::string its_name, const std::vector<std::string>& settings);
  bool ready(std::chrono::milliseconds limit = std::chrono::seconds(20));
  std::string log() const;

  std::string name, directory, socket;
  uint16_t port;
  ChildProcess process;
};
std::vector<std::string> daemon_arguments(const std::string& root, const std::string& name, uint16_t port,
                                          const std::vector<std::string>& settings);

// Of a process: how many descriptors it has, and its time on the processors.
size_t open_descriptors(pid_t pid);
std::chrono::milliseconds processor_time(pid_t pid);

// Calls `condition` every few milliseconds until it is true or `limit` is over.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(10));

// gw_join with everything said, so that this process's environment does not matter. Empty rendezvous: a job
// of one node.
gw_status join_job(const char* name, int rank, int world, const std::string& socket,
                   const std::string& rendezvous, gw_job** job, int64_t timeout_ms = 20'000);

struct Outcome {
  int status = -1;      // gw_status
  std::string message;  // gw_last_error
  double value = 0;
};
// A trainer: runs `body` in a child and reports what it returned.
class Trainer {
 public:
  explicit Trainer(const std::function<Outcome()>& body);
  ~Trainer();
  Trainer(Trainer&& other) noexcept : process(std::move(other.process)), pipe_(other.pipe_) {
    other.pipe_ = -1;
  }
  // Nothing if it did not report in time (killed, or it hangs).
  std::optional<Outcome> outcome(std::chrono::milliseconds limit = std::chrono::seconds(20));

  ChildProcess process;

 private:
  int pipe_ = -1;
};

}  // namespace gradwire::control::testing
