// What can be said about a configuration before a daemon starts with it.
#pragma once

#include "config/config.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::control {

transport::UcxOptions ucx_options(const config::TransportOptions& config);

// Beyond load_config: reads the key file as the daemon will, and lets UCX look at the transport's settings.
// The first error, with the option it is about.
Status check_config(const config::Config& config);

}  // namespace gradwire::control
