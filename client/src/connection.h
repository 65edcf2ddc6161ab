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
#include "client/wire/framing.h"

namespace gradwire::client {

inline constexpr uint32_t kProtocol = 2;  // of the control connection

// The checks inside json's move look like throws to the linter.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct Answer {
  nlohmann::json document;
  std::vector<wire::UniqueFd> descriptors;
};

class Connection {
 public:
  gw_status open(const std::string& path, Deadline deadline);

  // Sends `message` (its id is set here) and waits for the answer of that type with that many descriptors.
  // An "error" answer becomes its code and sentence; GW_ERR_ABORTED if the epoch ends meanwhile.
  gw_status request(nlohmann::json message, std::string_view answer_type, size_t descriptors,
                    Deadline deadline, Answer* answer);

  enum class News { kNone, kBusy, kAborted, kGone };
  // Reads what came unasked. Never blocks; kBusy while a request is being answered.
  News look(std::string* cause);

  // Relaxed: a hint for what the waiting side polls for; it looks again a moment later.
  bool requesting() const { return requesting_.load(std::memory_order_relaxed); }
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  void set_gone() { gone_.store(true, std::memory_order_relaxed); }
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }
  // What a caller is told when the daemon has gone.
  std::string gone_sentence() const;

 private:
  gw_status send(std::string_view frame, Deadline deadline);
  gw_status receive(std::string* document, Deadline deadline);
  gw_status read_available(bool* end_of_file, bool* progress);
  gw_status wait_for(short events, Deadline deadline);

  wire::UniqueFd socket_;
  std::string path_;
  std::mutex mutex_;
  wire::FrameReader reader_;
  std::vector<wire::UniqueFd> descriptors_;  // received, not yet claimed by a document
  uint64_t next_id_ = 1;
  std::atomic<bool> requesting_{false};
  std::atomic<bool> gone_{false};
};

// Reads a whole number from 0 to `high`; false if it is missing or something else.
bool read_member(const nlohmann::json& document, const char* name, uint64_t high, uint64_t* value);
// Reads a string of at most `limit` bytes; false if it is missing or something else.
bool read_member(const nlohmann::json& document, const char* name, size_t limit, std::string* value);

}  // namespace gradwire::client
