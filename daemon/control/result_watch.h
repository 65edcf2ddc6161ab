// The coordinator's part in noticing that nodes got different results: compares what they say of one
// operation. What only one of them says, or says late, means nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "daemon/control/documents.h"

namespace gradwire::control {

class ResultWatch {
 public:
  // Operations that are remembered; beyond that the oldest are forgotten.
  static constexpr size_t kWatched = 4096;

  struct Difference {
    uint32_t bucket = 0;
    uint64_t sequence = 0;
    uint32_t node = 0, other = 0;  // indices in the epoch
  };

  // The first difference between this node's results and those of others.
  std::optional<Difference> reported(uint32_t node, const Results& results);

  uint64_t compared() const { return compared_; }

 private:
  using Operation = std::pair<uint32_t, uint64_t>;  // bucket, sequence
  struct First {
    uint32_t node = 0;
    uint64_t hash = 0;
  };
  std::map<Operation, First> first_;  // who spoke first of it
  std::deque<Operation> order_;       // of first_
  uint64_t compared_ = 0;
};

}  // namespace gradwire::control
