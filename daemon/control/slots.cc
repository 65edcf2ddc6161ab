#include "daemon/control/slots.h"

#include <algorithm>

namespace gradwire::control {

Slots::Slots(uint32_t count) {
  for (uint32_t slot = count; slot > 0; --slot) {
    free_.push_back(static_cast<int>(slot - 1));
  }
}

int Slots::take(Key key, uint32_t uid) {
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
  held_[uid].insert(key);
  owners_.emplace(key.first, uid);
  return slot;
}

std::vector<std::pair<Slots::Key, int>> Slots::of_job(uint64_t job) const {
  return {used_.lower_bound({job, 0}), used_.lower_bound({job + 1, 0})};
}

std::vector<uint64_t> Slots::jobs() const {
  std::vector<uint64_t> jobs;
  for (const auto& [job, uid] : owners_) {
    jobs.push_back(job);
  }
  return jobs;
}

std::optional<uint32_t> Slots::owner(uint64_t job) const {
  const auto found = owners_.find(job);
  return found == owners_.end() ? std::nullopt : std::optional(found->second);
}

size_t Slots::held(uint32_t uid) const {
  const auto found = held_.find(uid);
  return found == held_.end() ? 0 : found->second.size();
}

std::optional<uint32_t> Slots::richest() const {
  const auto most = std::max_element(held_.begin(), held_.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  return most == held_.end() ? std::nullopt : std::optional(most->first);
}

int Slots::release(Key key) {
  const auto found = used_.find(key);
  if (found == used_.end()) {
    return -1;
  }
  const int slot = found->second;
  free_.push_back(slot);
  used_.erase(found);
  const auto owner = owners_.find(key.first);
  const auto held = held_.find(owner->second);
  held->second.erase(key);
  if (held->second.empty()) {
    held_.erase(held);
  }
  const auto next = used_.lower_bound({key.first, 0});
  if (next == used_.end() || next->first.first != key.first) {
    owners_.erase(owner);
  }
  return slot;
}

}  // namespace gradwire::control
