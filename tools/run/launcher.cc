#include "tools/run/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "tools/run/guard.h"
#include "tools/run/locate.h"
#include "tools/status.h"

namespace gradwire::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kReadyPatience{30};
constexpr seconds kTermPatience{5};
constexpr seconds kDrainPatience{1};
constexpr milliseconds kReportPatience{500};
constexpr int kStartTries = 3;  // a port may be taken between the choice and the bind
constexpr size_t kTailLines = 20;

void say(const std::string& text) {
  write_all(STDERR_FILENO, "gradwire run: " + text + "\n");
}

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

Environment rank_environment(Environment base, const RankPlace& place) {
  const auto number = [](uint32_t value) { return std::to_string(value); };
  base["GRADWIRE_SOCKET"] = place.socket;
  base["GRADWIRE_RENDEZVOUS"] = place.rendezvous;
  base["GRADWIRE_JOB"] = place.job;
  base["GRADWIRE_RUN_ID"] = place.run_id;
  base["GRADWIRE_RANK"] = base["RANK"] = number(place.rank);
  base["GRADWIRE_WORLD"] = base["WORLD_SIZE"] = number(place.world);
  base["LOCAL_RANK"] = number(place.local_rank);
  base["LOCAL_WORLD_SIZE"] = number(place.local_ranks);
  base["GROUP_RANK"] = number(place.node);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(place.master_port);
  base.emplace("OMP_NUM_THREADS", "1");
  if (!place.library.empty()) {
    base.emplace("GRADWIRE_LIBRARY", place.library);
  }
  if (!place.python.empty()) {
    std::string& path = base["PYTHONPATH"];
    path = path.empty() ? place.python : place.python + ":" + path;
  }
  return base;
}

Launcher::Launcher(const RunOptions& options, std::string folder)
    : options_(options), folder_(std::move(folder)) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

int Launcher::run() {
  Status status = start_daemons();
  if (status.ok()) {
    status = wait_until_ready();
  }
  if (status.ok() && interrupted_ == 0) {
    status = start_ranks();
  }
  if (!status.ok()) {
    say(status.message());
    own_failure_ = kExitRunFailed;
    signal_ranks(SIGKILL);
  }
  watch_ranks();
  report();
  stop_daemons(&daemons_);
  if (options_.keep) {
    say("folders and logs are kept in " + folder_);
  }
  return final_code();
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
  daemon_died_.assign(daemons_.size(), false);
  return {};
}

Status Launcher::wait_until_ready() {
  std::vector<int> tries(daemons_.size(), 1);
  const SteadyTime deadline = steady_clock::now() + kReadyPatience;
  for (size_t node = 0; node < daemons_.size() && interrupted_ == 0;) {
    Daemon& daemon = daemons_[node];
    if (is_ready(daemon)) {
      ++node;
      continue;
    }
    if (daemon.process.check()) {
      if (tries[node]++ < kStartTries && failed_on_a_taken_port(daemon)) {
        Result<Daemon> again = start_daemon(daemon_options_, static_cast<uint32_t>(node), key_file_);
        GRADWIRE_RETURN_IF_ERROR(again.status());
        daemon = *std::move(again);
        continue;
      }
      daemon_died_[node] = true;
      return {Code::kUnavailable, "the daemon of " + daemon.name + " " + daemon.process.describe_end() +
                                      " before it was ready; its last words:\n" +
                                      log_tail(daemon, kTailLines)};
    }
    if (steady_clock::now() > deadline) {
      return {Code::kDeadlineExceeded, "the daemon of " + daemon.name + " is not ready after " +
                                           std::to_string(kReadyPatience.count()) + " s; its last words:\n" +
                                           log_tail(daemon, kTailLines)};
    }
    std::this_thread::sleep_for(milliseconds(10));
    take_signals();
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
  place.python = find_python_package(executable_folder());
  const Environment base = current_environment();
  for (uint32_t rank = 0; rank < place.world && interrupted_ == 0; ++rank) {
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
    const std::string mark = std::string("[").append(std::to_string(rank)).append("] ");
    ranks_.push_back(
        std::make_unique<Rank>(Rank{rank, *process, LineRelay(std::move(out->read), STDOUT_FILENO, mark),
                                    LineRelay(std::move(err->read), STDERR_FILENO, mark)}));
    take_signals();
  }
  return {};
}

void Launcher::watch_ranks() {
  SteadyTime drained = SteadyTime::max();
  for (;;) {
    take_signals();
    look_for_ends();
    act_on_deadlines();
    const bool running = ranks_running();
    const bool open =
        std::ranges::any_of(ranks_, [](const auto& rank) { return rank->out.open() || rank->err.open(); });
    if (!running && drained == SteadyTime::max()) {
      drained = steady_clock::now() + kDrainPatience;
    }
    // Something that left its group may still hold a pipe; it gets a second.
    if (!running && (!open || steady_clock::now() > drained)) {
      return;
    }
    poll_outputs(100);
  }
}

void Launcher::poll_outputs(int timeout_ms) {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  std::vector<LineRelay*> relays{nullptr};
  for (const auto& rank : ranks_) {
    for (LineRelay* relay : {&rank->out, &rank->err}) {
      if (relay->open()) {
        fds.push_back({relay->fd(), POLLIN, 0});
        relays.push_back(relay);
      }
    }
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) {
    return;
  }
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents != 0 && !relays[i]->forward()) {
      output_gone_ = true;
    }
  }
}

void Launcher::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) {
      continue;
    }
    if (interrupted_ == 0) {
      interrupted_ = number;
      say(std::string("ending because of ") + ::strsignal(number));
    } else {
      stage_ = std::max(stage_, 1);
    }
    next_stage_ = SteadyTime::min();  // the next stage at once
  }
}

void Launcher::look_for_ends() {
  for (const auto& rank : ranks_) {
    if (rank->process.check() && rank->process.exit_code() != 0 && !rank->ended_by_us) {
      fail(std::string("rank ") + std::to_string(rank->number) + " " + rank->process.describe_end());
    }
  }
  for (size_t node = 0; node < daemons_.size(); ++node) {
    Daemon& daemon = daemons_[node];
    if (!daemon_died_[node] && daemon.process.check()) {
      daemon_died_[node] = true;
      own_failure_ = std::max(own_failure_, 1);
      fail("the daemon of " + daemon.name + " " + daemon.process.describe_end());
    }
  }
  if (output_gone_ && next_stage_ == SteadyTime::max()) {
    own_failure_ = std::max(own_failure_, 128 + SIGPIPE);
    next_stage_ = SteadyTime::min();
  }
}

void Launcher::fail(const std::string& what) {
  std::string consequence;
  if (!failed_ && ranks_running()) {
    char text[64];
    std::snprintf(text, sizeof(text), "; the other ranks have %g s to end", options_.grace_seconds);
    consequence = text;
  }
  failed_ = true;
  say(what + consequence);
  if (next_stage_ == SteadyTime::max()) {
    next_stage_ = steady_clock::now() + milliseconds(static_cast<int64_t>(options_.grace_seconds * 1000));
  }
}

void Launcher::act_on_deadlines() {
  if (steady_clock::now() < next_stage_ || stage_ == 2 || !ranks_running()) {
    return;
  }
  signal_ranks(stage_ == 0 ? SIGTERM : SIGKILL);
  next_stage_ = ++stage_ == 1 ? steady_clock::now() + kTermPatience : SteadyTime::max() - seconds(1);
}

void Launcher::signal_ranks(int number) {
  for (const auto& rank : ranks_) {
    if (rank->process.running()) {
      rank->ended_by_us = true;
      rank->process.signal(number);
    }
  }
}

bool Launcher::ranks_running() const {
  return std::ranges::any_of(ranks_, [](const auto& rank) { return rank->process.running(); });
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
  if (ranks_.empty()) {
    return;
  }
  std::vector<std::string> dirs;
  for (const Daemon& daemon : daemons_) {
    dirs.push_back(daemon.runtime_dir);
  }
  wait_until_jobs_ended();
  write_all(STDOUT_FILENO, std::string("\n") + to_table(collect(dirs), monotonic_ns()));
  if (failed_) {
    for (const Daemon& daemon : daemons_) {
      write_all(STDERR_FILENO, log_tail(daemon, kTailLines));
    }
  }
}

int Launcher::final_code() const {
  if (interrupted_ != 0) {
    return 128 + interrupted_;
  }
  int code = own_failure_;
  for (const auto& rank : ranks_) {
    if (!rank->ended_by_us) {
      code = std::max(code, rank->process.exit_code());
    }
  }
  if (code == 0 && std::ranges::any_of(ranks_, [](const auto& rank) { return rank->ended_by_us; })) {
    code = 1;
  }
  return code;
}

}  // namespace gradwire::tools
