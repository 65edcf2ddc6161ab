#include "tools/run/launcher.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tools/run/environment.h"
#include "tools/run/guard.h"
#include "tools/run/locate.h"
#include "tools/status.h"

namespace gradwire::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kReadyPatience{30};
constexpr milliseconds kReportPatience{500};
constexpr int kStartTries = 3;  // a port may be taken between the choice and the bind
constexpr size_t kTailLines = 20;

std::string random_id() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    value = static_cast<uint64_t>(::getpid());
  }
  char text[20];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

bool failed_on_a_taken_port(const Daemon& daemon) {
  const std::string tail = log_tail(daemon, kTailLines);
  return tail.find("in use") != std::string::npos;
}

}  // namespace

Launcher::Launcher(const RunOptions& options, std::string folder)
    : options_(options), folder_(std::move(folder)), supervisor_(options.grace_seconds, &daemons_) {}

int Launcher::run() {
  Status status = start_daemons();
  if (status.ok()) {
    status = wait_until_ready();
  }
  if (status.ok() && !supervisor_.interrupted()) {
    status = start_ranks();
  }
  if (!status.ok()) {
    say(status.message());
    supervisor_.give_up(kExitRunFailed);
  }
  supervisor_.watch();
  report();
  stop_daemons(&daemons_);
  if (options_.keep) {
    say("folders and logs are kept in " + folder_);
  }
  return supervisor_.final_code();
}

Status Launcher::start_daemons() {
  daemon_options_.binary = options_.daemon;
  if (options_.daemon.empty()) {
    Result<std::string> found = find_daemon(executable_folder());
    GRADWIRE_RETURN_IF_ERROR(found.status());
    daemon_options_.binary = *found;
  }
  daemon_options_.folder = folder_;
  daemon_options_.nodes = options_.nodes;
  daemon_options_.settings = options_.settings;
  Result<std::string> key = write_key(folder_);
  GRADWIRE_RETURN_IF_ERROR(key.status());
  key_file_ = *key;
  for (uint32_t node = 0; node < options_.nodes; ++node) {
    Result<Daemon> daemon = start_daemon(daemon_options_, node, key_file_);
    GRADWIRE_RETURN_IF_ERROR(daemon.status());
    daemons_.push_back(*std::move(daemon));
  }
  return {};
}

Status Launcher::wait_until_ready() {
  std::vector<int> tries(daemons_.size(), 1);
  const SteadyTime deadline = steady_clock::now() + kReadyPatience;
  std::vector<bool> ready(daemons_.size(), false);
  for (size_t waiting = daemons_.size(); waiting > 0 && !supervisor_.interrupted();) {
    for (size_t node = 0; node < daemons_.size(); ++node) {
      Daemon& daemon = daemons_[node];
      if (daemon.process.check()) {  // nobody waits for the others then
        if (ready[node] || tries[node]++ >= kStartTries || !failed_on_a_taken_port(daemon)) {
          return {Code::kUnavailable, "the daemon of " + daemon.name + " " + daemon.process.describe_end() +
                                          " before " + (ready[node] ? "all were" : "it was") +
                                          " ready; its last words:\n" + log_tail(daemon, kTailLines)};
        }
        Result<Daemon> again = start_daemon(daemon_options_, static_cast<uint32_t>(node), key_file_);
        GRADWIRE_RETURN_IF_ERROR(again.status());
        daemon = *std::move(again);
      } else if (!ready[node] && is_ready(daemon)) {
        ready[node] = true;
        --waiting;
      } else if (!ready[node] && steady_clock::now() > deadline) {
        return {Code::kDeadlineExceeded, "the daemon of " + daemon.name + " is not ready after " +
                                             std::to_string(kReadyPatience.count()) +
                                             " s; its last words:\n" + log_tail(daemon, kTailLines)};
      }
    }
    if (waiting > 0) {
      std::this_thread::sleep_for(milliseconds(10));
      supervisor_.take_signals();
    }
  }
  return {};
}

Status Launcher::start_ranks() {
  const Result<uint16_t> master_port = free_port();
  GRADWIRE_RETURN_IF_ERROR(master_port.status());
  RankPlace place;
  place.world = options_.nodes * options_.local_ranks;
  place.local_ranks = options_.local_ranks;
  place.rendezvous = std::string("127.0.0.1:") + std::to_string(daemons_[0].port);
  place.job = "run";
  place.run_id = random_id();
  place.master_port = *master_port;
  place.library = find_client_library(executable_folder());
  const Result<SearchFolders> folders = make_search_folders(folder_, executable_path(), place.library,
                                                            find_python_package(executable_folder()));
  GRADWIRE_RETURN_IF_ERROR(folders.status());
  place.folders = *folders;
  const Environment base = current_environment();
  for (uint32_t rank = 0; rank < place.world && !supervisor_.interrupted(); ++rank) {
    place.rank = rank;
    place.node = rank / options_.local_ranks;
    place.local_rank = rank % options_.local_ranks;
    place.socket = daemons_[place.node].socket;
    Result<Pipe> out = make_pipe();
    GRADWIRE_RETURN_IF_ERROR(out.status());
    Result<Pipe> err = make_pipe();
    GRADWIRE_RETURN_IF_ERROR(err.status());
    SpawnSpec spec;
    spec.argv = options_.command;
    spec.environment = rank_environment(base, place);
    spec.stdout_fd = out->write.get();
    spec.stderr_fd = err->write.get();
    Result<Process> process = Process::spawn(spec);
    GRADWIRE_RETURN_IF_ERROR(process.status());
    supervisor_.add(rank, *process, std::move(out->read), std::move(err->read));
    supervisor_.take_signals();
  }
  return {};
}

// The daemons write down the end of a job shortly after its last rank has left.
void Launcher::wait_until_jobs_ended() {
  const auto ended = [](const Daemon& daemon) {
    const Result<CountersPage> page = read_counters(counters_path(daemon.runtime_dir));
    return !page.ok() || !page->locked ||
           (!page->jobs.empty() && std::ranges::all_of(page->jobs, [](const JobCounters& job) {
             return job.state == layout::JobState::kEnded || job.state == layout::JobState::kAborted;
           }));
  };
  const SteadyTime deadline = steady_clock::now() + kReportPatience;
  while (!std::ranges::all_of(daemons_, ended) && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
}

void Launcher::report() {
  if (!supervisor_.any_ranks()) {
    return;
  }
  std::vector<std::string> dirs;
  for (const Daemon& daemon : daemons_) {
    dirs.push_back(daemon.runtime_dir);
  }
  wait_until_jobs_ended();
  write_all(STDOUT_FILENO, std::string("\n") + to_table(collect(dirs), monotonic_ns()));
  if (supervisor_.failed()) {
    for (const Daemon& daemon : daemons_) {
      write_all(STDERR_FILENO, log_tail(daemon, kTailLines));
    }
  }
}

}  // namespace gradwire::tools
