#include "daemon/engine/engine_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "daemon/engine/bell.h"

namespace gradwire::engine {

namespace {

constexpr uint64_t kNanoseconds = 1'000'000'000;
// Sessions see a sign of life at least this often.
constexpr uint64_t kHeartbeatNs = kNanoseconds / 2;
// The rings are looked at this often for one look at the network, which costs a system call.
constexpr int kRingRounds = 16;

uint64_t read_clock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * kNanoseconds + static_cast<uint64_t>(time.tv_nsec);
}

bool watch(int epoll_fd, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

uint64_t MonotonicClock::now_ns() const {
  return read_clock(CLOCK_MONOTONIC);
}

uint64_t MonotonicClock::cpu_ns() const {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

EngineThread::EngineThread(std::unique_ptr<transport::Transport> transport, Listener& listener,
                           const EngineOptions& engine_options, const EngineThreadOptions& options)
    : transport_(std::move(transport)),
      listener_(listener),
      engine_options_(engine_options),
      options_(options),
      address_(transport_->address()),
      name_(transport_->name()) {}

EngineThread::~EngineThread() {
  stop();
  if (epoll_fd_ >= 0) {
    ::close(epoll_fd_);
  }
  if (command_fd_ >= 0) {
    ::close(command_fd_);
  }
}

Status EngineThread::start() {
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  command_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int transport_fd = transport_->event_fd();
  if (epoll_fd_ < 0 || command_fd_ < 0 || !watch(epoll_fd_, command_fd_, EPOLLIN) ||
      (transport_fd >= 0 && !watch(epoll_fd_, transport_fd, EPOLLIN))) {
    return Status(Code::kResourceExhausted, std::string("the engine's descriptors: ") + std::strerror(errno) +
                                                "; raise the limit of open files (LimitNOFILE=, ulimit -n)");
  }
  // Signals are the main thread's.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), "gw-engine");
  return ok_status();
}

void EngineThread::stop() {
  if (thread_.joinable()) {
    // The order of the commands makes it the last one that runs.
    post([this](Engine&) { stopping_.store(true, std::memory_order_relaxed); });
    thread_.join();
  }
}

void EngineThread::post(std::function<void(Engine&)> command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
    posted_.store(true, std::memory_order_release);  // pairs with run_commands' exchange
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(command_fd_, &one, sizeof(one));
}

bool EngineThread::run_commands(Engine& engine) {
  if (!posted_.load(std::memory_order_relaxed) || !posted_.exchange(false, std::memory_order_acquire)) {
    return false;
  }
  std::vector<std::function<void(Engine&)>> commands;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void(Engine&)>& command : commands) {
    command(engine);
  }
  return true;
}

void EngineThread::run() {
  {
    Engine engine(clock_, *transport_, listener_, engine_options_);
    uint64_t idle_since = 0;  // 0: there was work
    while (!stopping_.load(std::memory_order_relaxed)) {
      const bool commanded = run_commands(engine);
      if (engine.poll() > 0 || commanded) {
        idle_since = 0;
        continue;
      }
      const uint64_t now = clock_.now_ns();
      idle_since = idle_since == 0 ? now : idle_since;
      if (now - idle_since < options_.spin_ns) {
        for (int i = 0; i < kRingRounds; ++i) {
          ::sched_yield();
          if (engine.poll_rings() > 0 || (engine.busy() && i % 4 == 3)) {
            break;
          }
        }
        continue;
      }
      idle_since = 0;
      sleep(engine);
    }
  }
  transport_.reset();  // on the thread that used it
}

// Edge-triggered: whatever a client leaves in its bell, or does to its end, wakes the engine once.
void EngineThread::watch_sessions(const Engine& engine) {
  if (watched_version_ == engine.jobs_version()) {
    return;
  }
  watched_version_ = engine.jobs_version();
  for (const int fd : watched_) {
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);  // fails for those that were closed: fine
  }
  watched_ = engine.bell_fds();
  for (const int fd : watched_) {
    watch(epoll_fd_, fd, EPOLLIN | EPOLLET);
  }
}

void EngineThread::sleep(Engine& engine) {
  watch_sessions(engine);
  if (!engine.prepare_sleep()) {
    return;
  }
  // A command posted from here on has written to command_fd_ or will: epoll_wait returns.
  if (!posted_.load(std::memory_order_acquire)) {
    const uint64_t now = clock_.now_ns();
    uint64_t until = engine.next_deadline_ns();
    if (!watched_.empty()) {
      until = std::min(until, now + kHeartbeatNs);
    }
    int timeout_ms = -1;
    if (until != UINT64_MAX) {
      timeout_ms =
          until <= now ? 0 : static_cast<int>(std::min<uint64_t>((until - now) / 1'000'000 + 1, 60'000));
    }
    std::array<epoll_event, 16> events;
    const int ready = ::epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < ready; ++i) {
      answer(events[static_cast<size_t>(i)].data.fd, events[static_cast<size_t>(i)].events);
    }
  }
  engine.wake();
}

// What woke the engine. The transport's descriptor is read by its poll().
void EngineThread::answer(int fd, uint32_t events) {
  if (fd == command_fd_) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(command_fd_, &count, sizeof(count));
    return;
  }
  if (std::find(watched_.begin(), watched_.end(), fd) == watched_.end()) {
    return;
  }
  // A bell that is broken is not a failure of its job: somebody else notices that a trainer is gone. Its
  // rings are looked at whenever the engine is awake, which the heartbeat makes it often enough.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0 || !take_rings(fd)) {
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  }
}

}  // namespace gradwire::engine
