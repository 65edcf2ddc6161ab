// The control connection to the node's daemon: one request at a time, answers matched by id.
//
// request() belongs to the submitting side, look() to the waiting side; a mutex (rare, never on the way of a
// gradient) keeps them from reading the socket at the same time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/include/gradwire/gradwire.h"
#include "client/src/clock.h"
#include "client/src/probe.h"
#include "client/src/pulse.h"
#include "client/src/reach.h"
#include "client/wire/framing.h"

namespace gradwire::client {

inline constexpr uint32_t kProtocol = 2;  // of the control connection

// The checks inside json's move look like throws to the linter.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct Answer {
  nlohmann::json document;
  std::vector<wire::UniqueFd> descriptors;
  bool refused = false;  // the failure is the daemon's, in its own words
};

class Connection {
 public:
  // Of a daemon whose heartbeat cannot be seen yet: it may be laying out much memory.
  static constexpr int64_t kStillMs = 10'000;
  static constexpr size_t kAnyDescriptors = SIZE_MAX;

  explicit Connection(int64_t still_ms = kStillMs) : still_ms_(still_ms) {}

  // Connects, also again after the daemon has gone. Nobody else may be using the connection.
  gw_status open(const std::string& path, Patience* patience);
  // From here on requests see by this word, which the daemon changes all the time, whether it stands still.
  // It must outlive the connection's last request.
  void watch(const std::atomic<uint64_t>* heartbeat, int64_t still_ms) {
    heartbeat_ = heartbeat;
    still_ms_ = still_ms;
  }

  // Sends `message` (its id is set here) and waits for the answer of that type with that many descriptors.
  // An "error" answer becomes its code and sentence; GW_ERR_ABORTED if the epoch ends meanwhile;
  // GW_ERR_UNAVAILABLE if the daemon goes away or stands still.
  gw_status request(nlohmann::json message, std::string_view answer_type, size_t descriptors,
                    Deadline deadline, Answer* answer);

  enum class News { kNone, kBusy, kAborted, kGone };
  // Reads what came unasked. Never blocks; kBusy while a request is being answered.
  News look(std::string* cause);

  // Relaxed: a hint for what the waiting side polls for; it looks again a moment later.
  bool requesting() const { return requesting_.load(std::memory_order_relaxed); }
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // The daemon closed the connection, rather than that we gave it up.
  bool hung_up() const { return hung_up_; }
  void set_gone() { gone_.store(true, std::memory_order_relaxed); }
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  // What a caller is told when the daemon has gone, and when it is there but does not move.
  std::string gone_sentence() const;
  std::string still_sentence(int64_t quiet_ms) const;
  // What a caller is told when an answer is not the one that was due.
  gw_status misfit(std::string_view type, size_t descriptors, std::string_view due, size_t due_descriptors);

 private:
  // What one request looks at while it waits.
  struct Vigil {
    Deadline deadline;
    Pulse pulse;
    Probe probe;  // where there is no heartbeat to be seen
  };

  gw_status send(std::string_view frame, Vigil* vigil);
  gw_status receive(std::string* document, Vigil* vigil);
  gw_status read_available(bool* end_of_file, bool* progress);
  gw_status wait_for(short events, Vigil* vigil);
  std::vector<wire::UniqueFd> claim_descriptors(std::string_view type);

  wire::UniqueFd socket_;
  std::string path_;
  int64_t still_ms_;
  const std::atomic<uint64_t>* heartbeat_ = nullptr;
  std::mutex mutex_;
  wire::FrameReader reader_;
  std::vector<wire::UniqueFd> descriptors_;  // received, not yet claimed by a document
  uint64_t next_id_ = 1;
  bool hung_up_ = false;
  std::atomic<bool> requesting_{false};
  std::atomic<bool> gone_{false};
};

// Reads a whole number from 0 to `high`; false if it is missing or something else.
bool read_member(const nlohmann::json& document, const char* name, uint64_t high, uint64_t* value);
// Reads a string of at most `limit` bytes; false if it is missing or something else.
bool read_member(const nlohmann::json& document, const char* name, size_t limit, std::string* value);

}  // namespace gradwire::client
