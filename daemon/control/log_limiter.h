// How often a message may be repeated: some times a minute for each key, more for each event, then it is
// counted only. Whoever causes messages on purpose, with ever new names, fills neither the log nor the
// memory.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/control/scheduler.h"

namespace gradwire::control {

class LogLimiter {
 public:
  static constexpr uint32_t kPerKey = 5;      // in a window
  static constexpr uint32_t kPerEvent = 120;  // in a window, all keys together
  static constexpr Nanoseconds kWindow = std::chrono::seconds(60);
  static constexpr size_t kKeys = 1024;  // remembered at a time; beyond, the event's own limit remains

  // May this message be written? The number says how many like it were suppressed in the window before.
  std::optional<uint64_t> admit(std::string_view event, std::string_view key, Nanoseconds now);

  struct Suppressed {
    std::string event, key;
    uint64_t count = 0;
  };
  // Forgets the windows that are over, and reports those in which something was suppressed.
  std::vector<Suppressed> take_expired(Nanoseconds now);

 private:
  struct Window {
    Nanoseconds begin{};
    uint32_t written = 0;
    uint64_t suppressed = 0;
  };
  using Key = std::pair<std::string, std::string>;
  // Counts one message; false: it is one too many.
  static bool count(Window& window, uint32_t limit);
  uint64_t renew(Window& window, Nanoseconds now);

  std::map<std::string, Window, std::less<>> events_;
  std::map<Key, Window> keys_;
};

}  // namespace gradwire::control
