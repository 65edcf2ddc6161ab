// What `gradwire status` says about daemons, from their counters pages alone.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/result.h"
#include "tools/counters_reader.h"

namespace gradwire::tools {

// A heartbeat older than this: the daemon is wedged. It is stored at least once a second.
inline constexpr uint64_t kWedgedAfterNs = 3'000'000'000;
// For so long an aborted job makes its daemon degraded; afterwards it is history.
inline constexpr uint64_t kAbortRemembersNs = 30'000'000'000;
inline constexpr int kStatusSchemaVersion = 2;
inline constexpr size_t kShownBuckets = 20;  // in a table, unless asked for all

enum class DaemonState {
  kHealthy,
  kDegraded,
  kWedged,      // lives, but stands still
  kStale,       // ended without saying so: killed, or crashed
  kStopped,     // ended in an orderly way
  kUnreadable,  // its page cannot be read: rights, or another layout version
  kAbsent
};
std::string_view state_name(DaemonState state);

struct DaemonReport {
  std::string runtime_dir;
  DaemonState state = DaemonState::kAbsent;
  std::vector<std::string> reasons;  // one sentence each, why the state is not healthy
  uint64_t heartbeat_age_ns = 0;
  uint64_t uptime_s = 0;             // until it stopped, or its last heartbeat, where it has ended
  std::optional<CountersPage> page;  // none: absent, unreadable
};

struct StatusFilter {
  std::string job;     // whole name, or the number; empty: all
  std::string bucket;  // pattern with * and ?; empty: all
};

// Judges one page.
DaemonReport assess(const std::string& runtime_dir, const Result<CountersPage>& page, uint64_t now_ns);
// Reads and judges the page in each directory.
std::vector<DaemonReport> collect(const std::vector<std::string>& runtime_dirs);

// Keeps what the filter selects. kNotFound, with what there is: daemons were read, and none of them knows
// such a job or bucket.
Status apply_filter(const StatusFilter& filter, std::vector<DaemonReport>* reports);

// 0 healthy; 1 degraded, wedged or unreadable; 3 not running; 4 if `found` is false while all are running.
int exit_code(const std::vector<DaemonReport>& reports, bool found);

// At most `most_buckets` of a daemon, the largest first.
std::string to_table(const std::vector<DaemonReport>& reports, uint64_t now_ns,
                     size_t most_buckets = kShownBuckets);
// Everything; buckets are sorted as in the table.
nlohmann::ordered_json to_json(const std::vector<DaemonReport>& reports, uint64_t now_ns);

}  // namespace gradwire::tools
