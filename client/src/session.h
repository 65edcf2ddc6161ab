#pragma once

#include <cstring>

#include "client/src/job.h"

namespace gradwire::client {

// Maps and examines the session's memory and sets up the rings.
gw_status map_session(gw_job* job, int fd, uint64_t announced_bytes);

}  // namespace gradwire::client
