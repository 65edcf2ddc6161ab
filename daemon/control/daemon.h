// Daemon: everything of one gradwired in one place, from the configuration to the orderly end.
//
// Construct, start(), run() on the thread that is to be the control thread; stop() from there or a signal.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "daemon/control/asio_scheduler.h"
#include "daemon/control/coordinator.h"
#include "daemon/control/counters_page.h"
#include "daemon/control/local_server.h"
#include "daemon/control/members.h"
#include "daemon/control/peer_network.h"
#include "daemon/control/thread_engine_port.h"
#include "daemon/engine/engine_thread.h"

namespace gradwire::control {

class Daemon {
 public:
  explicit Daemon(const config::Config& config);
  ~Daemon();  // NOLINT(bugprone-exception-escape)

  // Everything is up, and systemd knows it, when this returns ok. kAlreadyExists: another daemon lives here.
  Status start();
  // Until SIGTERM or SIGINT: then tells trainers and peers why, and returns.
  void run();

 private:
  // Brings the engine's news to the control thread.
  class News;

  Status start_engine();
  void start_control();
  void publish();
  void job_ends(const JobFacts& facts);
  void feed_watchdog();
  void stop();

  config::Config config_;
  asio::io_context context_;
  AsioScheduler scheduler_;
  wire::UniqueFd lock_;
  std::unique_ptr<News> news_;
  std::unique_ptr<CountersPage> page_;  // the engine's thread writes it
  std::unique_ptr<engine::EngineThread> engine_;
  std::unique_ptr<ThreadEnginePort> port_;
  std::unique_ptr<ThreadWorkshop> workshop_;
  std::optional<NodeContext> node_;
  std::unique_ptr<Members> members_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<PeerNetwork> peers_;
  std::unique_ptr<LocalServer> local_;
  std::unique_ptr<Timer> publish_timer_;
  std::unique_ptr<Timer> watchdog_timer_;
  std::unique_ptr<Timer> stop_timer_;
  Nanoseconds watchdog_interval_{};
  std::string status_line_;
  bool stopping_ = false;
};

}  // namespace gradwire::control
