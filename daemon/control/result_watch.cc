#include "daemon/control/result_watch.h"

namespace gradwire::control {

std::optional<ResultWatch::Difference> ResultWatch::reported(uint32_t node, const Results& results) {
  for (const engine::ResultSample& sample : results) {
    const Operation operation{sample.bucket, sample.sequence};
    const auto [entry, is_first] = first_.try_emplace(operation, First{node, sample.hash});
    if (is_first) {
      order_.push_back(operation);
      if (order_.size() > kWatched) {
        first_.erase(order_.front());
        order_.pop_front();
      }
    } else if (entry->second.node != node) {
      ++compared_;
      if (entry->second.hash != sample.hash) {
        return Difference{sample.bucket, sample.sequence, node, entry->second.node};
      }
    }
  }
  return std::nullopt;
}

}  // namespace gradwire::control
