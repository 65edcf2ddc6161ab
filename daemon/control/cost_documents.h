// What a node has measured, as it tells its coordinator.
#pragma once

#include <cstdint>

#include "daemon/control/fields.h"
#include "daemon/planner/costs.h"

namespace gradwire::control {

struct Measured {
  uint64_t round = 0;
  planner::NodeCosts costs;
};

// {"type":"measured","round":1,"link":[4 numbers],"exact":[8],"codecs":[[8],...]}, in the order of the
// structs' members; nanoseconds and bytes.
Json measured_document(const Measured& measured);
// kCorrupt: figures that cannot be, or not of `codecs` codecs.
Result<Measured> read_measured(const Json& document, size_t codecs);

}  // namespace gradwire::control
