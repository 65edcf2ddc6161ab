// Daemon: everything of one gradwired in one place, from the configuration to the orderly end.
//
// Construct, start() and run() on the thread that is to be the control thread. The request_* functions may be
// called from any thread, before run(), too.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "daemon/control/asio_scheduler.h"
#include "daemon/control/coordinator.h"
#include "daemon/control/counters_page.h"
#include "daemon/control/local_server.h"
#include "daemon/control/members.h"
#include "daemon/control/notifier.h"
#include "daemon/control/peer_network.h"
#include "daemon/control/thread_engine_port.h"
#include "daemon/engine/engine_thread.h"

namespace gradwire::control {

class Daemon {
 public:
  struct Hooks {
    std::function<Result<config::Config>()> reload;  // reads the configuration once more
    std::function<void(Nanoseconds)> stop_limit;     // how long an orderly end may take, as it changes
  };
  Daemon(const config::Config& config, Hooks hooks);
  ~Daemon();  // NOLINT(bugprone-exception-escape)

  // Everything is up, and systemd knows it, when this returns ok. kAlreadyExists: another daemon lives here.
  Status start();
  // Until it is asked to stop: then lets operations in flight end, tells trainers and peers why the rest does
  // not, and returns 0. Anything else: the control thread failed.
  int run();

  void request_reload() {
    scheduler_.post([this] { reload(); });
  }
  void request_stop() {
    scheduler_.post([this] { stop(); });
  }
  void request_stop_now() {
    scheduler_.post([this] { end_jobs(kHurry); });
  }

 private:
  // Brings the engine's news to the control thread.
  class News;
  using InFlight = std::vector<engine::OperationId>;  // ascending

  static constexpr Nanoseconds kGoodbye = std::chrono::milliseconds(300);
  static constexpr Nanoseconds kHurry = std::chrono::milliseconds(20);

  Status start_engine();
  void start_control();
  void accept_peer(LinkPtr link);

  void publish();
  void show(const std::vector<JobFacts>& facts, const std::vector<engine::JobSnapshot>& snapshots,
            uint64_t now_ns);
  void job_ends(const JobFacts& facts);
  void say_status(const std::vector<JobFacts>& facts);
  void feed_watchdog();

  void reload();
  bool apply(const config::Change& change, const config::Config& fresh);
  void tell_stop_limit();

  Status stopping() const;
  void stop();
  void watch_drain();
  void drained(const InFlight& now);
  void end_jobs(Nanoseconds goodbye);

  config::Config config_;
  const Hooks hooks_;
  asio::io_context context_;
  AsioScheduler scheduler_;
  Notifier notifier_;
  wire::UniqueFd lock_;
  std::unique_ptr<News> news_;
  std::unique_ptr<CountersPage> page_;
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
  std::unique_ptr<Timer> drain_timer_;  // when waiting for operations in flight ends
  std::unique_ptr<Timer> look_timer_;   // when to look for them again
  std::unique_ptr<Timer> goodbye_timer_;
  bool publishing_ = false;  // the engine has been asked and has not answered yet
  bool busy_ = false;        // operations were completed between the last two looks
  uint64_t operations_ = 0;
  bool pinged_ = false;
  Nanoseconds repaired_at_{};
  std::string last_end_;  // of a job, for the status line
  std::optional<InFlight> draining_;
  bool stopping_ = false, jobs_ended_ = false, orderly_ = false;
};

}  // namespace gradwire::control
