// Free and used places of one table of the counters page, and whose they are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gradwire::control {

class Slots {
 public:
  using Key = std::pair<uint64_t, uint64_t>;  // job, id
  explicit Slots(uint32_t count);
  // -1: full. All places of a job are the same user's.
  int take(Key key, uint32_t uid);
  std::vector<std::pair<Key, int>> of_job(uint64_t job) const;
  std::vector<uint64_t> jobs() const;
  std::optional<uint32_t> owner(uint64_t job) const;  // nullopt: the job has no place
  size_t held(uint32_t uid) const;
  // The user who has most places; nullopt: all are free.
  std::optional<uint32_t> richest() const;
  // The user's last record of the latest job; the user has one.
  Key latest_of(uint32_t uid) const { return *held_.at(uid).rbegin(); }
  int release(Key key);  // the place that is free now; -1: it had none

 private:
  std::map<Key, int> used_;
  std::map<uint32_t, std::set<Key>> held_;  // by user
  std::map<uint64_t, uint32_t> owners_;     // job -> user
  std::vector<int> free_;
};

}  // namespace gradwire::control
