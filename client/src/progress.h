// How far the job's epoch before this one came, as the daemon told it at the join.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace gradwire::client {

struct Progress {
  uint64_t lowest = 0, highest = 0;
  int32_t highest_rank = -1;
};

struct Past {
  uint64_t epoch = 0;  // 0: there is none
  uint32_t unknown_nodes = 0;
  std::map<std::string, Progress, std::less<>> buckets;
};

// Reads a joined answer's "past". False if anything in it contradicts the protocol or `world` and `epoch`,
// the joined epoch; what it does not know it ignores.
bool read_past(const nlohmann::json& document, uint64_t epoch, int32_t world, Past* past);

}  // namespace gradwire::client
