// What `gradwire status` says about daemons, from their counters pages alone.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/base/result.h"
#include "tools/counters_reader.h"

namespace gradwire::tools {

// A heartbeat older than this: the daemon is wedged. It is stored at least once a second.
inline constexpr uint64_t kWedgedAfterNs = 3'000'000'000;
inline constexpr int kStatusSchemaVersion = 1;

enum class DaemonState { kHealthy, kDegraded, kWedged, kStale, kAbsent };
std::string_view state_name(DaemonState state);

struct DaemonReport {
  std::string runtime_dir;
  DaemonState state = DaemonState::kAbsent;
  std::vector<std::string> reasons;  // one sentence each, why the state is not healthy
  uint64_t heartbeat_age_ns = 0;
  uint64_t uptime_s = 0;
  std::optional<CountersPage> page;  // none: absent
};

struct StatusFilter {
  std::string job;     // whole name; empty: all
  std::string bucket;  // pattern with * and ?; empty: all
};

// Judges one page: stale without a lock, wedged by its heartbeat, degraded by an aborted job or a lost peer.
DaemonReport assess(const std::string& runtime_dir, const Result<CountersPage>& page, uint64_t now_ns);
// Reads and judges the page in each directory.
std::vector<DaemonReport> collect(const std::vector<std::string>& runtime_dirs);

// Keeps what the filter selects. False: a daemon was read and none of them knows such a job or bucket.
bool apply_filter(const StatusFilter& filter, std::vector<DaemonReport>* reports);

// 0 healthy, 1 degraded or wedged, 3 not running; 4 if `found` is false while some daemon is running.
int exit_code(const std::vector<DaemonReport>& reports, bool found);

std::string to_table(const std::vector<DaemonReport>& reports, uint64_t now_ns);
nlohmann::ordered_json to_json(const std::vector<DaemonReport>& reports, uint64_t now_ns);

}  // namespace gradwire::tools
