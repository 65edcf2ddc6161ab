#include "daemon/control/slots.h"

namespace gradwire::control {

Slots::Slots(uint32_t count) {
  for (uint32_t slot = count; slot > 0; --slot) {
    free_.push_back(static_cast<int>(slot - 1));
  }
}

int Slots::take(Key key) {
  const auto found = used_.find(key);
  if (found != used_.end()) {
    return found->second;
  }
  if (free_.empty()) {
    return -1;
  }
  const int slot = free_.back();
  free_.pop_back();
  used_.emplace(key, slot);
  return slot;
}

std::vector<std::pair<Slots::Key, int>> Slots::of_job(uint64_t job) const {
  return {used_.lower_bound({job, 0}), used_.lower_bound({job + 1, 0})};
}

void Slots::release(Key key) {
  const auto found = used_.find(key);
  if (found != used_.end()) {
    free_.push_back(found->second);
    used_.erase(found);
  }
}

}  // namespace gradwire::control
