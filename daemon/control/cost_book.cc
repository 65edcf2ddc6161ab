#include "daemon/control/cost_book.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "daemon/control/bucket_reducer.h"
#include "daemon/control/log.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {
namespace {

constexpr size_t kMostKnown = 256;  // settings; a daemon's policies have few
constexpr double kWeight = 0.125;
constexpr planner::CodecCost kUsualExact{{100, 0.3}, {100, 0.4}, {100, 0.3}, 4, 4};  // of a common machine

}  // namespace

std::string CostBook::key_of(const config::PolicySettings& settings) {
  std::string key;
  const auto text = [](const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      return value;
    } else {
      return std::to_string(value);
    }
  };
  config::for_each_policy_setting(
      [&](const char*, auto setting, auto) { key += text(settings.*setting) + ' '; });
  return key;
}

void CostBook::find(const std::vector<config::PolicySettings>& settings,
                    std::function<void(const Costs&)> done) {
  struct Trials {
    std::vector<config::PolicySettings> settings;
    std::vector<Result<planner::CodecCost>> costs;
  };
  if (known_.size() > kMostKnown) {
    known_.clear();
  }
  std::vector<config::PolicySettings> wanted = settings;
  wanted.push_back(exact_settings());
  const auto trials = std::make_shared<Trials>();
  for (const config::PolicySettings& each : wanted) {
    if (!known_.contains(key_of(each))) {
      trials->settings.push_back(each);
    }
  }
  workshop_.run(
      [trials, trial = trial_] {
        for (const config::PolicySettings& each : trials->settings) {
          trials->costs.push_back(trial(codec_settings(each)));
        }
      },
      [weak = weak_from_this(), trials, wanted = std::move(wanted), done = std::move(done)] {
        const auto self = weak.lock();
        if (!self) {
          return;
        }
        for (size_t i = 0; i < trials->settings.size(); ++i) {
          const Result<planner::CodecCost>& cost = trials->costs[i];
          if (cost.ok()) {
            self->known_[key_of(trials->settings[i])] = *cost;
          } else {
            log_warning("codec_not_tried",
                        {{"codec", trials->settings[i].codec}, {"cause", cost.status().message()}});
          }
        }
        const auto cost_of = [&self](const config::PolicySettings& each,
                                     const planner::CodecCost& otherwise) {
          const auto found = self->known_.find(key_of(each));
          return found == self->known_.end() ? otherwise : found->second;
        };
        // What could not be tried counts as exact: it is neither preferred nor avoided.
        Costs costs;
        costs.exact = cost_of(wanted.back(), kUsualExact);
        for (size_t i = 0; i + 1 < wanted.size(); ++i) {
          costs.codecs.push_back(cost_of(wanted[i], costs.exact));
        }
        done(costs);
      });
}

void CostBook::seen(const config::PolicySettings& settings, double hop_ns_per_element,
                    double decode_ns_per_element) {
  const auto found = known_.find(key_of(settings));
  if (found == known_.end()) {
    return;
  }
  planner::CodecCost& cost = found->second;
  const auto follow = [](double& value, double seen) { value += kWeight * (seen - value); };
  const double arrival = cost.relay.unit_ns - cost.first.unit_ns;  // hops with and without are timed together
  follow(cost.relay.unit_ns, hop_ns_per_element);
  follow(cost.decode.unit_ns, decode_ns_per_element);
  cost.first.unit_ns = std::max(0.0, cost.relay.unit_ns - arrival);
}

}  // namespace gradwire::control
