// Child processes in groups of their own, and the small system calls around them. Linux only.
//
// Every child dies with the process that started it (PR_SET_PDEATHSIG), and can be killed together with
// whatever it started, by its process group, for as long as it was not reaped. Not thread-safe: a process
// that starts children has one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::tools {

using SteadyTime = std::chrono::steady_clock::time_point;
using Environment = std::map<std::string, std::string>;

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read, write;
};
Result<Pipe> make_pipe();

Environment current_environment();

struct SpawnSpec {
  std::vector<std::string> argv;  // argv[0] is looked for in PATH of `environment`
  Environment environment;
  int stdout_fd = -1;
  int stderr_fd = -1;
};

class Process {
 public:
  // kNotFound, kPermissionDenied: the program cannot be executed. Standard input is /dev/null.
  static Result<Process> spawn(const SpawnSpec& spec);

  pid_t pid() const { return pid_; }
  bool running() const { return !exit_code_.has_value(); }
  // Looks whether it has ended; then what is left of its group is killed, and it is reaped. True if it ended
  // in this call.
  bool check();
  // To the whole group; nothing once reaped.
  void signal(int number) const;
  // As a shell says it: 128 + number of the signal, or the exit status. Only when ended.
  int exit_code() const { return *exit_code_; }
  // "exited with code 3", "was killed by signal 9 (Killed)".
  std::string describe_end() const;

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  std::optional<int> exit_code_;
};

// Ends what is left below this process: children that were adopted from children. For a subreaper, when all
// its own processes have been reaped.
void kill_remaining_children();

}  // namespace gradwire::tools
