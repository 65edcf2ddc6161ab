#include "daemon/control/check_config.h"

#include <algorithm>

#include "config/psk.h"

namespace gradwire::control {

transport::UcxOptions ucx_options(const config::TransportOptions& config) {
  transport::UcxOptions options;
  options.tls = config.tls;
  options.net_devices = config.devices;
  options.overrides.assign(config.ucx.begin(), config.ucx.end());
  options.segment_bytes = static_cast<uint32_t>(config.segment);
  return options;
}

Status check_config(const config::Config& config) {
  if (!config.peers.key_file.empty()) {
    Result<std::vector<std::byte>> key = config::load_psk(config.peers.key_file);
    GRADWIRE_RETURN_IF_ERROR(key.status().with_context("peers.key_file"));
    std::fill(key->begin(), key->end(), std::byte{0});
  }
  return transport::make_ucx_transport(ucx_options(config.transport)).status().with_context("transport");
}

}  // namespace gradwire::control
