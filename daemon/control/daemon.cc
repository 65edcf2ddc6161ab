#include "daemon/control/daemon.h"

#include <openssl/rand.h>
#include <ucp/api/ucp.h>

#include <algorithm>

#include "config/policy_json.h"
#include "daemon/control/check_config.h"
#include "daemon/control/log.h"
#include "daemon/engine/engine_thread.h"
#include "daemon/planner/codec_trial.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::control {
namespace {

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
      member.engine_moved_on(bucket, sequence);
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

Daemon::Daemon(const config::Config& config, Hooks hooks)
    : config_(config), hooks_(std::move(hooks)), scheduler_(context_) {
  tell_stop_limit();
}

// A handler that throws ends the process here as it does in run().
// NOLINTNEXTLINE(bugprone-exception-escape)
Daemon::~Daemon() {
  stopping_ = jobs_ended_ = true;  // requests that wait come too late
  publish_timer_.reset();
  watchdog_timer_.reset();
  drain_timer_.reset();
  look_timer_.reset();
  goodbye_timer_.reset();
  local_.reset();
  if (engine_) {
    engine_->stop();
  }
  if (node_ && node_->residuals) {
    node_->residuals->close();
  }
  if (workshop_) {
    workshop_->stop();
  }
  // What was posted to the control thread and never ran refers to all of the above, and the links that these
  // close post once more.
  context_.restart();
  context_.poll();
  members_.reset();
  coordinator_.reset();
  peers_.reset();
  context_.restart();
  context_.poll();
  workshop_.reset();
  if (page_ && orderly_) {
    page_->mark_stopped();
  }
}

Status Daemon::start() {
  try {
    auto lock = lock_runtime_dir(config_.node.runtime_dir);
    GRADWIRE_RETURN_IF_ERROR(lock.status());
    lock_ = std::move(*lock);
    GRADWIRE_RETURN_IF_ERROR(start_engine());
    peers_ = std::make_unique<PeerNetwork>(context_, scheduler_, config_.peers);
    GRADWIRE_RETURN_IF_ERROR(peers_->start([this](LinkPtr link) { accept_peer(std::move(link)); }));
    start_control();
    peers_->on_wrong_key([this](const std::string& source, const std::string& cause) {
      coordinator_->connection_refused(source, cause);
    });
    local_ = std::make_unique<LocalServer>(context_, *node_, *members_);
    GRADWIRE_RETURN_IF_ERROR(local_->start(config_.node));
    publish();
    feed_watchdog();
    notifier_.ready();
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
  self.data_hosts = (*transport)->hosts();
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
  // Before the page: when a daemon is killed, the kernel ends what was opened last first, and the end of the
  // watches on memory takes it some 20 ms, in which the page's lock would say that the daemon lives.
  const auto quotas = std::make_shared<QuotaLedger>(config_.quotas);
  auto page =
      CountersPage::create(config_.node.runtime_dir, self.name, self.version, engine_->transport_name());
  GRADWIRE_RETURN_IF_ERROR(page.status());
  page_ = std::move(*page);
  GRADWIRE_RETURN_IF_ERROR(engine_->start());
  port_ = std::make_unique<ThreadEnginePort>(*engine_, scheduler_);
  workshop_ = std::make_unique<ThreadWorkshop>(scheduler_);
  node_.emplace(NodeContext{scheduler_, *port_, *workshop_, quotas, self, config_.clocks.peer_timeout,
                            config_.clocks.operation_timeout,
                            [this](const std::string& rendezvous, uint32_t uid, Reply<LinkPtr> done) {
                              peers_->connect(rendezvous, uid, std::move(done));
                            }});
  node_->residuals =
      std::make_shared<ResidualStore>(scheduler_, *workshop_, node_->quotas, config_.clocks.residual_ttl);
  node_->costs = std::make_shared<CostBook>(*workshop_, [](const compress::CodecSettings& settings) {
    return planner::try_codec(
        settings, [] { return engine::MonotonicClock().now_ns(); },
        [] { return engine::MonotonicClock().cpu_ns(); });
  });
  node_->pasts = std::make_shared<PastStore>(scheduler_, config_.clocks.residual_ttl);
  node_->reaper = std::make_shared<SocketReaper>(
      [quotas = node_->quotas](uint32_t uid) { return quotas->charge_closing(uid); });
  GRADWIRE_RETURN_IF_ERROR(node_->reaper->start());
  return ok_status();
}

void Daemon::start_control() {
  node_->self.control_address = advertised(config_, peers_->port());
  coordinator_ = std::make_unique<Coordinator>(
      scheduler_,
      CoordinatorOptions{node_->self, config_.clocks.peer_timeout, config_.clocks.operation_timeout,
                         config::policy_to_json(config_.compression), random_bytes, config_.plan,
                         config_.clocks.stall_warning});
  members_ =
      std::make_unique<Members>(*node_, Members::Hooks{[this](const JobFacts& facts) { job_ends(facts); }});
  publish_timer_ = std::make_unique<Timer>(scheduler_);
  watchdog_timer_ = std::make_unique<Timer>(scheduler_);
  drain_timer_ = std::make_unique<Timer>(scheduler_);
  look_timer_ = std::make_unique<Timer>(scheduler_);
  goodbye_timer_ = std::make_unique<Timer>(scheduler_);
}

void Daemon::accept_peer(LinkPtr link) {
  if (stopping_) {
    link->send(failure_document("abort", stopping()));
    link->close();
    return;
  }
  coordinator_->accept(std::move(link));
}

int Daemon::run() {
  try {
    context_.run();
    return 0;
  } catch (const std::exception& error) {
    log_error("control_thread_failed", {{"cause", error.what()}});
    return 1;
  }
}

}  // namespace gradwire::control
