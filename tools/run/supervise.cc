#include "tools/run/supervise.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gradwire::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kTermPatience{5};
constexpr seconds kDrainPatience{1};

}  // namespace

void say(const std::string& text) {
  write_all(STDERR_FILENO, "gradwire run: " + text + "\n");
}

Supervisor::Supervisor(double grace_seconds, std::vector<Daemon>* daemons)
    : grace_seconds_(grace_seconds), daemons_(daemons) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  signals_ = UniqueFd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

void Supervisor::add(uint32_t number, const Process& process, UniqueFd out, UniqueFd err) {
  const std::string mark = std::string("[").append(std::to_string(number)).append("] ");
  ranks_.push_back(
      std::make_unique<Rank>(Rank{number, process, LineRelay(std::move(out), STDOUT_FILENO, mark),
                                  LineRelay(std::move(err), STDERR_FILENO, mark)}));
}

void Supervisor::give_up(int code) {
  own_failure_ = code;
  signal_ranks(SIGKILL);
}

void Supervisor::watch() {
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

void Supervisor::poll_outputs(int timeout_ms) {
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

void Supervisor::take_signals() {
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

void Supervisor::look_for_ends() {
  for (const auto& rank : ranks_) {
    if (rank->process.check() && rank->process.exit_code() != 0 && !rank->ended_by_us) {
      fail(std::string("rank ") + std::to_string(rank->number) + " " + rank->process.describe_end());
    }
  }
  for (size_t node = 0; node < daemons_->size(); ++node) {
    Daemon& daemon = (*daemons_)[node];
    if (daemon.process.check()) {
      own_failure_ = std::max(own_failure_, 1);
      fail("the daemon of " + daemon.name + " " + daemon.process.describe_end());
    }
  }
  if (output_gone_ && next_stage_ == SteadyTime::max()) {
    own_failure_ = std::max(own_failure_, 128 + SIGPIPE);
    next_stage_ = SteadyTime::min();
  }
}

void Supervisor::fail(const std::string& what) {
  std::string consequence;
  if (!failed_ && ranks_running()) {
    char text[64];
    std::snprintf(text, sizeof(text), "; the other ranks have %g s to end", grace_seconds_);
    consequence = text;
  }
  failed_ = true;
  say(what + consequence);
  if (next_stage_ == SteadyTime::max()) {
    next_stage_ = steady_clock::now() + milliseconds(static_cast<int64_t>(grace_seconds_ * 1000));
  }
}

void Supervisor::act_on_deadlines() {
  if (steady_clock::now() < next_stage_ || stage_ == 2 || !ranks_running()) {
    return;
  }
  signal_ranks(stage_ == 0 ? SIGTERM : SIGKILL);
  next_stage_ = ++stage_ == 1 ? steady_clock::now() + kTermPatience : SteadyTime::max() - seconds(1);
}

void Supervisor::signal_ranks(int number) {
  for (const auto& rank : ranks_) {
    if (rank->process.running()) {
      rank->ended_by_us = true;
      rank->process.signal(number);
    }
  }
}

bool Supervisor::ranks_running() const {
  return std::ranges::any_of(ranks_, [](const auto& rank) { return rank->process.running(); });
}

int Supervisor::final_code() const {
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
