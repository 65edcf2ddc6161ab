// What a node measures for its job's planner.
#include <algorithm>
#include <utility>

#include "compress/reducer.h"
#include "config/policy_json.h"
#include "daemon/control/cost_documents.h"
#include "daemon/control/member.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

constexpr size_t kMostCodecs = 16;

Result<std::vector<std::string>> read_codecs(Fields& fields) {
  std::vector<std::string> codecs;
  const Json* const list = fields.array("codecs", kMostCodecs);
  GRADWIRE_RETURN_IF_ERROR(fields.status());
  const auto known = compress::codec_names();
  for (const Json& entry : *list) {
    const auto* const name = entry.is_string() ? entry.get_ptr<const std::string*>() : nullptr;
    if (name == nullptr || std::find(known.begin(), known.end(), *name) == known.end()) {
      return Status(Code::kCorrupt, "codecs holds what is no codec here");
    }
    codecs.push_back(*name);
  }
  return codecs;
}

}  // namespace

Status Member::measure(const Json& document) {
  Fields fields(document);
  const uint64_t round = fields.number("round", 1, UINT64_MAX);
  const Json* const policy_json = fields.object("policy");
  const Result<std::vector<std::string>> codecs = read_codecs(fields);
  GRADWIRE_RETURN_IF_ERROR(codecs.status().with_context("measure"));
  const Result<config::CompressionPolicy> policy = config::policy_from_json(*policy_json);
  GRADWIRE_RETURN_IF_ERROR(policy.status().with_context("measure, policy"));
  if (measuring_) {
    return {Code::kCorrupt, "measure: the round before is not over here"};
  }
  if (!node_.costs || state_ != State::kRunning) {
    return ok_status();
  }
  measuring_ = true;
  node_.costs->find(plan_candidates(*policy, *codecs),
                    [round, weak = weak_from_this()](const CostBook::Costs& costs) {
                      if (const auto self = weak.lock(); self && !self->over()) {
                        self->probe(round, costs);
                      }
                    });
  return ok_status();
}

void Member::engine_coded(const engine::JobSnapshot& job) {
  if (state_ == State::kRunning) {
    buckets_->coded(job);
  }
}

// A measurement may have met other traffic: earlier ones count, too, each half as much as the next.
planner::ProbeTimes Member::smoothed(const engine::ProbeTimes& times) {
  probe_weight_ = 0.5 * probe_weight_ + 1;
  const auto follow = [this](double& mean, uint64_t ns) {
    mean += (static_cast<double>(ns) - mean) / probe_weight_;
  };
  probed_.elements = engine::kProbeElements;
  follow(probed_.empty_ns, times.empty_ns);
  follow(probed_.empty_cpu_ns, times.empty_cpu_ns);
  follow(probed_.full_ns, times.full_ns);
  follow(probed_.full_cpu_ns, times.full_cpu_ns);
  return probed_;
}

// The codecs first, so that they do not disturb the network's measurement.
void Member::probe(uint64_t round, const CostBook::Costs& costs) {
  node_.engine.probe(job_, [round, costs, weak = weak_from_this()](const engine::ProbeTimes& times) {
    const auto self = weak.lock();
    if (!self || self->over()) {
      return;
    }
    self->measuring_ = false;
    const planner::LinkCost link =
        planner::fit_link(self->smoothed(times), static_cast<uint32_t>(self->epoch_->nodes.size()),
                          self->epoch_->max_payload, costs.exact);
    self->send(measured_document({round, {link, costs.exact, costs.codecs}}));
  });
}

}  // namespace gradwire::control
