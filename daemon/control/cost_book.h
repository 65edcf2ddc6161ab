// CostBook: what codecs cost on this node, for all of its jobs: tried out once each, then corrected by what
// the engine sees.
//
// On the control thread; the trials are in the workshop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compress/reducer.h"
#include "config/base/result.h"
#include "config/policy.h"
#include "daemon/control/engine_port.h"
#include "daemon/planner/costs.h"

namespace gradwire::control {

class CostBook : public std::enable_shared_from_this<CostBook> {
 public:
  // Tries a codec on this machine; called on the workshop's thread.
  using Trial = std::function<Result<planner::CodecCost>(const compress::CodecSettings&)>;
  CostBook(Workshop& workshop, Trial trial) : workshop_(workshop), trial_(std::move(trial)) {}

  struct Costs {
    planner::CodecCost exact;
    std::vector<planner::CodecCost> codecs;  // in the order of the settings
  };
  // `done` comes later, on the control thread.
  void find(const std::vector<config::PolicySettings>& settings, std::function<void(const Costs&)> done);

  bool knows_any() const { return !known_.empty(); }

  // What hops and decodes of that codec have taken in earnest. Counts an eighth of it, so that one disturbed
  // moment does not change plans.
  void seen(const config::PolicySettings& settings, double hop_ns_per_element, double decode_ns_per_element);

 private:
  static std::string key_of(const config::PolicySettings& settings);

  Workshop& workshop_;
  Trial trial_;
  std::map<std::string, planner::CodecCost> known_;
};

}  // namespace gradwire::control
