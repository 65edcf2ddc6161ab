#include "tools/run/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX wants it declared by the user

namespace gradwire::tools {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    out.push_back(text.data());
  }
  out.push_back(nullptr);
  return out;
}

// Runs in the child between fork and exec: system calls only.
[[noreturn]] void become(const char* program, char* const* argv, char* const* env, int out, int err,
                         int report, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // the parent died before the line above
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGTTOU, SIG_DFL);
  const int in = ::open("/dev/null", O_RDONLY);
  if (in >= 0 && ::dup2(in, STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0 &&
      ::dup2(err, STDERR_FILENO) >= 0) {
    environ = const_cast<char**>(env);  // whose PATH is searched
    ::execvp(program, argv);
  }
  const int error = errno;
  const ssize_t ignored = ::write(report, &error, sizeof(error));
  static_cast<void>(ignored);
  ::_exit(127);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() {
  return std::exchange(fd_, -1);
}

void UniqueFd::reset() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return Status(Code::kResourceExhausted, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Environment current_environment() {
  Environment out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (const size_t equals = text.find('='); equals != std::string_view::npos) {
      out.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return out;
}

Result<Process> Process::spawn(const SpawnSpec& spec) {
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables;
  for (const auto& [name, value] : spec.environment) {
    variables.emplace_back(name).append("=").append(value);
  }
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> env = pointers(variables);
  Result<Pipe> report = make_pipe();
  if (!report.ok()) {
    return report.status();
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return Status(Code::kResourceExhausted, std::string("cannot start a process: ") + std::strerror(errno));
  }
  if (pid == 0) {
    become(argv[0], argv.data(), env.data(), spec.stdout_fd, spec.stderr_fd, report->write.get(), parent);
  }
  ::setpgid(pid, pid);  // in both processes, whoever comes first
  report->write.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(report->read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    ::waitpid(pid, nullptr, 0);
    return Status(error == ENOENT ? Code::kNotFound : Code::kPermissionDenied,
                  "cannot execute " + spec.argv[0] + ": " + std::strerror(error));
  }
  return Process(pid);
}

bool Process::check() {
  if (!running()) {
    return false;
  }
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return false;
  }
  // While it is a zombie its number cannot belong to another group.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

void Process::signal(int number) const {
  if (running()) {
    ::kill(-pid_, number);
  }
}

std::string Process::describe_end() const {
  if (*exit_code_ > 128) {
    const int number = *exit_code_ - 128;
    return "was killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
  }
  return "exited with code " + std::to_string(*exit_code_);
}

void kill_remaining_children() {
  const std::string path = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  for (int round = 0; round < 1000; ++round) {
    std::ifstream list(path);
    pid_t pid = 0;
    bool any = false;
    while (list >> pid) {
      any = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (!any) {
      return;
    }
  }
}

}  // namespace gradwire::tools
