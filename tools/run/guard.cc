#include "tools/run/guard.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tools/discover.h"
#include "tools/run/process.h"

namespace gradwire::tools {
namespace {

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, number);
  }
  return set;
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) {
    std::fprintf(stderr, "gradwire run: cannot remove %s: %s\n", folder.c_str(), error.message().c_str());
  }
}

[[noreturn]] void be_worker(pid_t guard, bool keep, const std::string& folder,
                            const std::function<int(const std::string&)>& work) {
  // A group of its own: the terminal's Ctrl-C comes once, from the guard.
  ::setpgid(0, 0);
  ::signal(SIGTTOU, SIG_IGN);  // which makes this a background group: let it write all the same
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  int code = kExitRunFailed;
  if (::getppid() == guard) {
    code = work(folder);
  }
  kill_remaining_children();
  if (!keep) {
    remove_folder(folder);
  }
  std::fflush(nullptr);
  ::_exit(code);
}

int wait_for_worker(pid_t worker, const sigset_t& signals) {
  for (;;) {
    int status = 0;
    if (::waitpid(worker, &status, WNOHANG) == worker) {
      if (WIFSIGNALED(status)) {
        std::fprintf(stderr, "gradwire run: killed by signal %d; cleaning up\n", WTERMSIG(status));
        return kExitRunFailed;
      }
      return WEXITSTATUS(status);
    }
    siginfo_t info{};
    const int number = ::sigwaitinfo(&signals, &info);
    if (number > 0 && number != SIGCHLD) {
      ::kill(worker, number);
    }
  }
}

}  // namespace

int run_guarded(bool keep, const std::function<int(const std::string& folder)>& work) {
  std::string folder = run_parent() + "/gradwire-run.XXXXXX";
  const sigset_t signals = handled_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  ::signal(SIGPIPE, SIG_IGN);
  if (::mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "gradwire run: cannot make %s: %s\n", folder.c_str(), std::strerror(errno));
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return kExitRunFailed;
  }
  std::error_code ignored;
  folder = std::filesystem::canonical(folder, ignored).string();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  const pid_t self = ::getpid();
  const pid_t worker = ::fork();
  if (worker == 0) {
    be_worker(self, keep, folder, work);
  }
  int code = kExitRunFailed;
  if (worker > 0) {
    code = wait_for_worker(worker, signals);
    kill_remaining_children();
  } else {
    std::fprintf(stderr, "gradwire run: cannot start a process: %s\n", std::strerror(errno));
  }
  std::error_code error;
  if (!keep && std::filesystem::exists(folder, error)) {
    remove_folder(folder);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace gradwire::tools
