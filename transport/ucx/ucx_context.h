// How UCX is configured: everything that is set before a worker exists is in ucx_context.cc.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

#include "config/base/result.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport::ucx_internal {

Result<ucp_context_h> create_context(const UcxOptions& options);

Status status_of(ucs_status_t status, std::string_view doing);

// Our frame around a worker's address, so that damaged bytes never reach UCX, which would trust them.
std::string frame_address(std::string_view worker_address, uint32_t segment_bytes);
Result<std::string_view> unframe_address(std::string_view framed, uint32_t segment_bytes);

// The transport of an endpoint's first lane ("tcp", "rc_verbs"); empty if UCX does not say.
std::string lane_of(ucp_ep_h endpoint);

}  // namespace gradwire::transport::ucx_internal
