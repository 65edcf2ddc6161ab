// How a bucket is to be reduced, as the coordinator tells it: the member `plan` of bucket_ok and
// plan_prepare.
#pragma once

#include <string>

#include "daemon/control/fields.h"
#include "daemon/engine/engine.h"

namespace gradwire::control {

struct Plan {
  engine::Algorithm algorithm = engine::Algorithm::kRing;
  std::string codec = "policy";  // as the policy says; none; or one that replaces what it says
  uint32_t segment = 0;          // the most bytes of a message; 0: the transport's
  uint64_t expected_ns = 0;      // an operation; 0: nobody has measured
  uint64_t exact_ns = 0;         // the same without compression, along the ring
  // Of how it is done, not of what is expected.
  bool same_way(const Plan& other) const {
    return algorithm == other.algorithm && codec == other.codec && segment == other.segment;
  }
};

// "policy by ring, segments of 130048 bytes"
std::string describe(const Plan& plan);

Json plan_to_json(const Plan& plan);
// Complains where it is missing or odd, and gives back the default then. `max_payload`: the transport's.
Plan read_plan(Fields& fields, uint32_t max_payload);

}  // namespace gradwire::control
