#include "daemon/control/log_limiter.h"

namespace gradwire::control {

bool LogLimiter::count(Window& window, uint32_t limit) {
  if (window.written < limit) {
    ++window.written;
    return true;
  }
  ++window.suppressed;
  return false;
}

// What was suppressed in the window that is over.
uint64_t LogLimiter::renew(Window& window, Nanoseconds now) {
  if (window.written == 0 || now - window.begin >= kWindow) {
    return std::exchange(window, Window{now, 0, 0}).suppressed;
  }
  return 0;
}

std::optional<uint64_t> LogLimiter::admit(std::string_view event, std::string_view key, Nanoseconds now) {
  Window& all = events_[std::string(event)];
  uint64_t before = renew(all, now);
  const Key full{event, key};
  auto found = keys_.find(full);
  if (found == keys_.end() && keys_.size() < kKeys) {
    found = keys_.emplace(full, Window{}).first;
  }
  if (found != keys_.end()) {
    before += renew(found->second, now);
    if (!count(found->second, kPerKey)) {
      found->second.suppressed += before;  // another message will say it
      return std::nullopt;
    }
  }
  if (!count(all, kPerEvent)) {
    all.suppressed += before;
    return std::nullopt;
  }
  return before;
}

std::vector<LogLimiter::Suppressed> LogLimiter::take_expired(Nanoseconds now) {
  std::vector<Suppressed> expired;
  std::erase_if(keys_, [&](const auto& entry) {
    const auto& [key, window] = entry;
    if (now - window.begin < kWindow) {
      return false;
    }
    if (window.suppressed > 0) {
      expired.push_back({key.first, key.second, window.suppressed});
    }
    return true;
  });
  std::erase_if(events_, [&](const auto& entry) {
    const auto& [event, window] = entry;
    if (now - window.begin < kWindow) {
      return false;
    }
    if (window.suppressed > 0) {
      expired.push_back({event, "", window.suppressed});
    }
    return true;
  });
  return expired;
}

}  // namespace gradwire::control
