#include "daemon/control/plan_document.h"

#include <algorithm>

#include "compress/geometry.h"
#include "compress/reducer.h"
#include "daemon/planner/planner.h"

namespace gradwire::control {
namespace {

static_assert(planner::kSmallestSegment == compress::kMinMessageBytes);

constexpr uint64_t kLongest = 3'600'000'000'000;  // ns

bool is_codec(const std::string& name) {
  const auto names = compress::codec_names();
  return name == "policy" || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string describe(const Plan& plan) {
  const std::string segments =
      plan.segment == 0 ? "" : ", segments of " + std::to_string(plan.segment) + " bytes";
  return plan.codec + " by " + std::string(engine::algorithm_name(plan.algorithm)) + segments;
}

Json plan_to_json(const Plan& plan) {
  return {{"algorithm", std::string(engine::algorithm_name(plan.algorithm))},
          {"codec", plan.codec},
          {"segment", plan.segment},
          {"expected_ns", plan.expected_ns},
          {"exact_ns", plan.exact_ns}};
}

Plan read_plan(Fields& fields, uint32_t max_payload) {
  const Json* const object = fields.object("plan");
  if (object == nullptr) {
    return {};
  }
  Fields inner(*object);
  Plan plan;
  const std::string algorithm = inner.text("algorithm", 1, 16);
  plan.codec = inner.text("codec", 1, 16);
  plan.segment = inner.number<uint32_t>("segment", 0, max_payload);
  plan.expected_ns = inner.number("expected_ns", 0, kLongest);
  plan.exact_ns = inner.number("exact_ns", 0, kLongest);
  plan.algorithm = algorithm == engine::algorithm_name(engine::Algorithm::kDirect)
                       ? engine::Algorithm::kDirect
                       : engine::Algorithm::kRing;
  if (inner.ok() && algorithm != engine::algorithm_name(plan.algorithm)) {
    inner.complain("algorithm", "is '" + algorithm + "', neither ring nor direct");
  }
  if (inner.ok() && !is_codec(plan.codec)) {
    inner.complain("codec", "is '" + plan.codec + "', which is no codec here");
  }
  if (inner.ok() && plan.segment != 0 && plan.segment < planner::kSmallestSegment) {
    inner.complain("segment", "is " + std::to_string(plan.segment) + " bytes, below " +
                                  std::to_string(planner::kSmallestSegment));
  }
  if (!inner.ok()) {
    fields.complain("plan", inner.status().message());
    return {};
  }
  return plan;
}

}  // namespace gradwire::control
