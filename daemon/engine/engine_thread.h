// EngineThread: the thread that owns an Engine and its Transport, with the real clock.
//
// It polls while there is work, spins a little, then sleeps on the transport, the sessions' bells and its own
// descriptor; idle it uses no CPU. Other threads reach the engine through post(); the listener is called on
// the engine's thread and hands its news on in its own way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "config/base/result.h"
#include "daemon/engine/engine.h"
#include "transport/transport.h"

namespace gradwire::engine {

// CLOCK_MONOTONIC.
class MonotonicClock final : public Clock {
 public:
  uint64_t now_ns() const override;
  uint64_t cpu_ns() const override;
};

struct EngineThreadOptions {
  // How long to look for work, giving the core to others in between, before sleeping. 0: not at all, for
  // machines with fewer cores than processes that spin.
  uint64_t spin_ns = 20'000;
};

class EngineThread {
 public:
  // The transport is used by the engine's thread only, from start() on. The listener outlives this.
  EngineThread(std::unique_ptr<transport::Transport> transport, Listener& listener,
               const EngineOptions& engine_options, const EngineThreadOptions& options);
  ~EngineThread();  // as stop()
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  Status start();
  // Runs what was posted before, ends all jobs, joins the thread. Nothing is posted any more.
  void stop();

  // From any thread: runs the command between two rounds of the engine, in the order of the calls.
  // A command that comes back proves that the loop turns (the watchdog's ping).
  void post(std::function<void(Engine&)> command);

  const std::string& transport_address() const { return address_; }
  const std::string& transport_name() const { return name_; }  // as known before the first connection

 private:
  void run();
  bool run_commands(Engine& engine);
  void watch_sessions(const Engine& engine);
  void sleep(Engine& engine);
  void answer(int fd, uint32_t events);

  std::unique_ptr<transport::Transport> transport_;
  Listener& listener_;
  const EngineOptions engine_options_;
  const EngineThreadOptions options_;
  const std::string address_, name_;
  MonotonicClock clock_;
  std::thread thread_;
  int epoll_fd_ = -1;
  int command_fd_ = -1;
  std::mutex mutex_;
  std::vector<std::function<void(Engine&)>> commands_;  // guarded by mutex_
  std::atomic<bool> posted_{false};                     // commands_ is not empty
  std::atomic<bool> stopping_{false};
  uint64_t watched_version_ = UINT64_MAX;  // of the engine's jobs
  std::vector<int> watched_;
};

}  // namespace gradwire::engine
