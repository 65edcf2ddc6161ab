// Free and used places of one table of the counters page.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace gradwire::control {

class Slots {
 public:
  using Key = std::pair<uint64_t, uint64_t>;  // job, id
  explicit Slots(uint32_t count);
  // -1: full.
  int take(Key key);
  std::vector<std::pair<Key, int>> of_job(uint64_t job) const;
  const std::map<Key, int>& all() const { return used_; }
  void release(Key key);

 private:
  std::map<Key, int> used_;
  std::vector<int> free_;
};

}  // namespace gradwire::control
