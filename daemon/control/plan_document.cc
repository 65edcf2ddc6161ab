#include "daemon/control/plan_document.h"

namespace gradwire::control {

Json plan_to_json(const config::PlanOptions& plan) {
  return {{"algorithm", plan.algorithm}};
}

engine::Algorithm read_plan(Fields& fields) {
  const Json* const plan = fields.object("plan");
  if (plan == nullptr) {
    return engine::Algorithm::kRing;
  }
  Fields inner(*plan);
  const std::string name = inner.text("algorithm", 1, 16);
  for (const engine::Algorithm algorithm : {engine::Algorithm::kRing, engine::Algorithm::kDirect}) {
    if (name == engine::algorithm_name(algorithm)) {
      return algorithm;
    }
  }
  fields.complain("plan", inner.ok() ? "names algorithm '" + name + "', which is neither ring nor direct"
                                     : inner.status().message());
  return engine::Algorithm::kRing;
}

}  // namespace gradwire::control
