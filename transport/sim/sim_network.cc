#include "transport/sim/sim_network.h"

#include <string>
#include <utility>

#include "transport/sim/sim_core.h"

namespace gradwire::transport {
namespace {

using sim_internal::Core;
using sim_internal::Node;

class SimTransport final : public Transport {
 public:
  SimTransport(std::shared_ptr<Core> core, Node* node) : core_(std::move(core)), node_(node) {}

  ~SimTransport() override {
    core_->kill(node_);
    for (size_t id = 1; id <= node_->peers.size(); ++id) {
      core_->disconnect(node_, static_cast<PeerId>(id));
    }
  }

  void set_receiver(Receiver* receiver) override { node_->receiver = receiver; }
  std::string_view name() const override { return "sim"; }
  std::string address() const override { return Core::address(*node_); }
  Result<PeerId> connect(std::string_view address) override { return core_->connect(node_, address); }
  void disconnect(PeerId peer) override { core_->disconnect(node_, peer); }
  void send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
            SendCompletion* done) override {
    core_->send(node_, peer, header, payload, done);
  }
  size_t max_payload() const override { return core_->options.max_payload; }
  uint32_t send_window() const override { return core_->options.send_window; }
  size_t poll() override { return core_->poll(node_); }
  bool arm() override { return node_->inbox.empty() || node_->dead; }
  int event_fd() const override { return -1; }
  TransportCounters counters() const override { return node_->counters; }

 private:
  const std::shared_ptr<Core> core_;
  Node* const node_;
};

}  // namespace

SimNetwork::SimNetwork(const SimOptions& options) : core_(std::make_shared<Core>(options)) {}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<Transport> SimNetwork::create_node(std::string_view name) {
  return std::make_unique<SimTransport>(core_, core_->add_node(name));
}

uint64_t SimNetwork::now_ns() const {
  return core_->now();
}

std::optional<uint64_t> SimNetwork::next_event_ns() {
  return core_->next_event();
}

bool SimNetwork::step() {
  const auto next = core_->next_event();
  return next.has_value() && core_->advance(*next);
}

bool SimNetwork::advance_to(uint64_t ns) {
  return core_->advance(ns);
}

void SimNetwork::kill(std::string_view node) {
  core_->kill(core_->node(node));
}

void SimNetwork::cut(std::string_view a, std::string_view b) {
  core_->set_cut(core_->node(a), core_->node(b), true);
}

void SimNetwork::heal(std::string_view a, std::string_view b) {
  core_->set_cut(core_->node(a), core_->node(b), false);
}

void SimNetwork::reset(std::string_view a, std::string_view b) {
  core_->reset(core_->node(a), core_->node(b));
}

void SimNetwork::set_link(std::string_view from, std::string_view to, uint64_t latency_ns,
                          uint64_t bytes_per_second) {
  sim_internal::Link* link = core_->link(core_->node(from), core_->node(to));
  link->latency_ns = latency_ns;
  link->bytes_per_second = bytes_per_second;
}

void SimNetwork::set_filter(MessageFilter filter) {
  core_->filter = std::move(filter);
}

void SimNetwork::inject(std::string_view from, std::string_view to, std::span<const std::byte> header,
                        std::span<const std::byte> payload) {
  core_->put_on_wire(core_->link(core_->node(from), core_->node(to)), core_->make_message(header, payload));
}

uint64_t SimNetwork::fingerprint() const {
  return core_->fingerprint;
}

uint64_t SimNetwork::deliveries() const {
  return core_->deliveries;
}

}  // namespace gradwire::transport
