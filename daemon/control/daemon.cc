#include "daemon/control/daemon.h"

#include <openssl/rand.h>
#include <systemd/sd-daemon.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <csignal>

#include "config/policy_json.h"
#include "daemon/control/log.h"
#include "daemon/engine/snapshot.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::control {
namespace {

constexpr Nanoseconds kPublishBusy = std::chrono::milliseconds(250);
constexpr Nanoseconds kPublishIdle = std::chrono::milliseconds(500);
constexpr Nanoseconds kGoodbye = std::chrono::milliseconds(300);

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1) {
    log_error("no_randomness", {{"cause", "RAND_bytes failed"}});
    std::abort();  // a key that can be guessed is worse than no daemon
  }
  return bytes;
}

uint64_t to_ms(config::Duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

uint64_t to_ns(config::Duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<Nanoseconds>(duration).count());
}

transport::UcxOptions ucx_options(const config::TransportOptions& config) {
  transport::UcxOptions options;
  options.tls = config.tls;
  options.net_devices = config.devices;
  options.overrides.assign(config.ucx.begin(), config.ucx.end());
  options.segment_bytes = static_cast<uint32_t>(config.segment);
  return options;
}

std::string advertised(const config::Config& config, uint16_t port) {
  std::string host = config.peers.advertise;
  if (host.empty()) {
    const bool any = config.peers.listen == "0.0.0.0" || config.peers.listen == "::";
    host = any ? config.node.name : config.peers.listen;
  }
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

}  // namespace

class Daemon::News final : public engine::Listener {
 public:
  explicit News(Daemon& daemon) : daemon_(daemon) {}

  void on_job_failed(engine::JobId job, const Status& cause) override {
    tell(job, [cause](Member& member) { member.engine_failed(cause); });
  }
  void on_stall(const engine::Stall& stall) override {
    tell(stall.job, [stall](Member& member) { member.engine_stalled(stall); });
  }
  void on_progress_after_stall(engine::JobId job, uint32_t bucket, uint64_t sequence) override {
    tell(job, [bucket, sequence](Member& member) {
      log_info("stall_over", {{"job", member.identity().name},
                              {"bucket", std::to_string(bucket)},
                              {"sequence", std::to_string(sequence)}});
    });
  }

 private:
  void tell(engine::JobId job, std::function<void(Member&)> what) {
    daemon_.scheduler_.post([this, job, what = std::move(what)] {
      if (const auto member = daemon_.members_ ? daemon_.members_->find(job) : nullptr) {
        what(*member);
      }
    });
  }
  Daemon& daemon_;
};

Daemon::Daemon(const config::Config& config) : config_(config), scheduler_(context_) {}

// A handler that throws ends the process here as it does in run().
// NOLINTNEXTLINE(bugprone-exception-escape)
Daemon::~Daemon() {
  publish_timer_.reset();
  watchdog_timer_.reset();
  stop_timer_.reset();
  local_.reset();
  if (engine_) {
    engine_->stop();
  }
  workshop_.reset();
  // What was posted to the control thread and never ran refers to all of the above, and the links that these
  // close post once more.
  context_.restart();
  context_.poll();
  members_.reset();
  coordinator_.reset();
  peers_.reset();
  context_.restart();
  context_.poll();
}

Status Daemon::start() {
  try {
    auto lock = lock_runtime_dir(config_.node.runtime_dir);
    GRADWIRE_RETURN_IF_ERROR(lock.status());
    lock_ = std::move(*lock);
    GRADWIRE_RETURN_IF_ERROR(start_engine());
    peers_ = std::make_unique<PeerNetwork>(context_, scheduler_, config_.peers);
    GRADWIRE_RETURN_IF_ERROR(peers_->start([this](LinkPtr link) { coordinator_->accept(std::move(link)); }));
    start_control();
    local_ = std::make_unique<LocalServer>(context_, *node_, *members_);
    GRADWIRE_RETURN_IF_ERROR(local_->start(config_.node));
    publish();
    feed_watchdog();
    sd_notify(0, "READY=1\nSTATUS=no jobs");
    log_info("started",
             {{"node", config_.node.name},
              {"version", GRADWIRE_VERSION},
              {"socket", config_.node.socket},
              {"peers", peers_->has_key() ? node_->self.control_address : "off (no peers.key_file)"},
              {"transport", node_->self.transport + "/" + engine_->transport_name()}});
    return ok_status();
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string("the daemon cannot start: ") + error.what());
  }
}

Status Daemon::start_engine() {
  auto transport = transport::make_ucx_transport(ucx_options(config_.transport));
  GRADWIRE_RETURN_IF_ERROR(transport.status().with_context("transport"));
  NodeInfo self;
  self.name = config_.node.name;
  self.instance = random_bytes(16);
  self.version = GRADWIRE_VERSION;
  self.transport = std::string("ucx ") + ucp_get_version_string();
  self.transport = clean(self.transport.substr(0, self.transport.find(' ', 4)), 63);
  self.max_payload = static_cast<uint32_t>((*transport)->max_payload());
  self.peer_timeout_ms = to_ms(config_.clocks.peer_timeout);
  self.operation_timeout_ms = to_ms(config_.clocks.operation_timeout);
  news_ = std::make_unique<News>(*this);
  engine::EngineThreadOptions thread;
  if (config_.engine.spin) {
    thread.spin_ns = to_ns(*config_.engine.spin);
  }
  engine::EngineOptions engine;
  engine.stall_warning_ns = to_ns(config_.clocks.stall_warning);
  engine.operation_timeout_ns = to_ns(config_.clocks.operation_timeout);
  engine_ = std::make_unique<engine::EngineThread>(std::move(*transport), *news_, engine, thread);
  self.transport_address = engine_->transport_address();
  auto page =
      CountersPage::create(config_.node.runtime_dir, self.name, self.version, engine_->transport_name());
  GRADWIRE_RETURN_IF_ERROR(page.status());
  page_ = std::move(*page);
  GRADWIRE_RETURN_IF_ERROR(engine_->start());
  port_ = std::make_unique<ThreadEnginePort>(*engine_, scheduler_);
  workshop_ = std::make_unique<ThreadWorkshop>(scheduler_);
  node_.emplace(NodeContext{scheduler_, *port_, *workshop_, std::make_shared<QuotaLedger>(config_.quotas),
                            self, config_.clocks.peer_timeout, config_.clocks.operation_timeout,
                            [this](const std::string& rendezvous, Reply<LinkPtr> done) {
                              peers_->connect(rendezvous, std::move(done));
                            }});
  return ok_status();
}

void Daemon::start_control() {
  node_->self.control_address = advertised(config_, peers_->port());
  coordinator_ = std::make_unique<Coordinator>(
      scheduler_,
      CoordinatorOptions{node_->self, config_.clocks.peer_timeout, config_.clocks.operation_timeout,
                         config::policy_to_json(config_.compression), random_bytes});
  members_ =
      std::make_unique<Members>(*node_, Members::Hooks{[this](const JobFacts& facts) { job_ends(facts); }});
  publish_timer_ = std::make_unique<Timer>(scheduler_);
  watchdog_timer_ = std::make_unique<Timer>(scheduler_);
  stop_timer_ = std::make_unique<Timer>(scheduler_);
  uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) > 0) {
    watchdog_interval_ = std::chrono::microseconds(watchdog_us / 3);
  }
}

void Daemon::publish() {
  auto facts = members_->facts();
  for (JobFacts& job : facts) {
    for (JobFacts::Peer& peer : job.peers) {
      const Nanoseconds heard = coordinator_->last_heard(job.identity, peer.instance);
      peer.heartbeat_ns = std::max(peer.heartbeat_ns, static_cast<uint64_t>(heard.count()));
    }
  }
  const std::string status = facts.empty() ? "no jobs" : std::to_string(facts.size()) + " jobs";
  if (status != status_line_) {
    status_line_ = status;
    sd_notify(0, ("STATUS=" + status).c_str());
  }
  publish_timer_->start(facts.empty() ? kPublishIdle : kPublishBusy, [this] { publish(); });
  engine_->post([page = page_.get(), facts = std::move(facts)](engine::Engine& engine) {
    std::vector<engine::JobSnapshot> snapshots;
    for (const JobFacts& job : facts) {
      snapshots.push_back(engine.snapshot(job.id));
    }
    page->publish(facts, snapshots, engine::MonotonicClock().now_ns());
  });
}

void Daemon::job_ends(const JobFacts& facts) {
  engine_->post([page = page_.get(), facts](engine::Engine& engine) {
    page->publish_ended(facts, engine.snapshot(facts.id), engine::MonotonicClock().now_ns());
  });
}

// Both loops must turn: the engine's answers, and the control thread sends the answer on.
void Daemon::feed_watchdog() {
  if (watchdog_interval_.count() == 0) {
    return;
  }
  watchdog_timer_->start(watchdog_interval_, [this] { feed_watchdog(); });
  engine_->post([this](engine::Engine&) { scheduler_.post([] { sd_notify(0, "WATCHDOG=1"); }); });
}

void Daemon::run() {
  asio::signal_set signals(context_, SIGTERM, SIGINT);
  const std::function<void()> wait = [this, &signals, &wait] {
    signals.async_wait([this, &wait](const boost::system::error_code& error, int signal) {
      if (error) {
        return;
      }
      log_info("signal", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
      if (stopping_) {
        context_.stop();  // the second one: at once
        return;
      }
      stop();
      wait();
    });
  };
  wait();
  try {
    context_.run();
  } catch (const std::exception& error) {
    log_error("control_thread_failed", {{"cause", error.what()}});
  }
}

void Daemon::stop() {
  stopping_ = true;
  sd_notify(0, "STOPPING=1\nSTATUS=stopping");
  const Status cause(Code::kAborted, "the daemon on node " + config_.node.name + " is stopping");
  peers_->stop();
  local_->stop();
  coordinator_->stop(cause);
  members_->stop(cause);
  // What was sent needs a moment on its way.
  stop_timer_->start(kGoodbye, [this] {
    local_->close_all();
    context_.stop();
  });
}

}  // namespace gradwire::control
