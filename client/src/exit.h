// Jobs that are left when the process ends well: GW_JOIN_LEAVE_AT_EXIT.
#pragma once

#include "client/src/job.h"

namespace gradwire::client {

// From here on `job` is left, and not freed, by an exit(0) or a return of 0 from main; by no other end. Any
// thread.
void leave_at_exit(gw_job* job);
// Before the job is freed; nothing happens to a job that leave_at_exit does not know.
void forget_at_exit(gw_job* job);

}  // namespace gradwire::client
