// What a node measures for its job's planner.
#include <utility>

#include "daemon/control/cost_documents.h"
#include "daemon/control/member.h"

namespace gradwire::control {
Status Member::measure(const Json& document) {
  const Result<Measure> asked = read_measure(document);
  GRADWIRE_RETURN_IF_ERROR(asked.status());
  if (measuring_) {
    return {Code::kCorrupt, "measure: the round before is not over here"};
  }
  if (!node_.costs || state_ != State::kRunning) {
    return ok_status();
  }
  measuring_ = true;
  node_.costs->find(asked->settings,
                    [round = asked->round, weak = weak_from_this()](const CostBook::Costs& costs) {
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
