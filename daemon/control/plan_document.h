// How a bucket is to be reduced, as the coordinator tells it in bucket_ok: the member `plan`.
#pragma once

#include "config/config.h"
#include "daemon/control/fields.h"
#include "daemon/engine/engine.h"

namespace gradwire::control {

Json plan_to_json(const config::PlanOptions& plan);
// Complains where it is missing or unknown, and gives back kRing then.
engine::Algorithm read_plan(Fields& fields);

}  // namespace gradwire::control
