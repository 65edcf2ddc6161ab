// What a coordinator has its nodes measure, and what they tell it.
#pragma once

#include <cstdint>
#include <vector>

#include "config/policy.h"
#include "daemon/control/fields.h"
#include "daemon/planner/costs.h"

namespace gradwire::control {

// The network, and codecs with these settings, in this order.
struct Measure {
  uint64_t round = 0;
  std::vector<config::PolicySettings> settings;
};

// {"type":"measure","round":1,"settings":[{all settings},...]}
Json measure_document(const Measure& measure);
// kCorrupt: settings that cannot be, or more than kMaxCandidates.
Result<Measure> read_measure(const Json& document);

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
