#include <cstdio>
#include <cstdlib>

#include "tests/transport/transport_harness.h"
#include "transport/sim/sim_network.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport::testing {
namespace {

class SimFabric : public Fabric {
 public:
  explicit SimFabric(uint64_t seed)
      : network_({.seed = seed, .jitter_ns = 30'000, .bytes_per_second = 1'000'000'000}) {}
  std::unique_ptr<Transport> create(std::string_view name) override { return network_.create_node(name); }
  void turn() override { network_.step(); }

 private:
  SimNetwork network_;
};

class UcxFabric : public Fabric {
 public:
  std::unique_ptr<Transport> create(std::string_view) override {
    auto transport = make_ucx_transport(loopback_options());
    if (!transport.ok()) {
      std::fprintf(stderr, "%s\n", transport.status().message().c_str());
      std::abort();
    }
    return std::move(transport).value();
  }
  void turn() override {}
};

}  // namespace

UcxOptions loopback_options() {
  return {.net_devices = "lo"};
}

std::unique_ptr<Fabric> make_sim_fabric(uint64_t seed) {
  return std::make_unique<SimFabric>(seed);
}

std::unique_ptr<Fabric> make_ucx_fabric() {
  return std::make_unique<UcxFabric>();
}

}  // namespace gradwire::transport::testing
