#include "daemon/control/log.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>

#include "config/base/one_line.h"
#include "daemon/control/log_limiter.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxValueBytes = 2048;

struct Limits {
  std::mutex mutex;
  LogLimiter limiter;
};

// Never destroyed: threads may log until the process ends.
Limits& limits() {
  static auto* const all = new Limits;
  return *all;
}

Nanoseconds now() {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
}

bool is_plain(std::string_view value) {
  return !value.empty() && value.size() <= kMaxValueBytes && std::ranges::all_of(value, [](char c) {
    return c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  });
}

// Bytes of the UTF-8 character at the start of `text`; 0: there is none, or one that a line must not hold.
size_t printable(std::string_view text, uint32_t* character) {
  const Character first = first_character(text);
  *character = first.value;
  return is_control(first.value) ? 0 : first.bytes;
}

void append_quoted(std::string& line, std::string_view value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  const bool cut = value.size() > kMaxValueBytes;
  value = value.substr(0, kMaxValueBytes);
  line += '"';
  while (!value.empty()) {
    uint32_t character = 0;
    if (const size_t bytes = printable(value, &character); bytes > 0) {
      if (character == '"' || character == '\\') {
        line += '\\';
      }
      line += value.substr(0, bytes);
      value.remove_prefix(bytes);
      continue;
    }
    const auto byte = static_cast<unsigned char>(value.front());
    if (byte == '\n') {
      line += "\\n";
    } else {
      line += "\\x";
      line += kHex[byte >> 4U];
      line += kHex[byte & 0x0FU];
    }
    value.remove_prefix(1);
  }
  line += cut ? "...\"" : "\"";
}

void append_field(std::string& line, std::string_view name, std::string_view value) {
  line += ' ';
  line += name;
  line += '=';
  if (is_plain(value)) {
    line += value;
  } else {
    append_quoted(line, value);
  }
}

void log_event(spdlog::level::level_enum level, std::string_view event, LogFields fields) {
  if (!spdlog::should_log(level)) {
    return;
  }
  std::string key;
  for (const auto* field = fields.begin(); field != fields.end() && field < fields.begin() + 2; ++field) {
    key += (key.empty() ? "" : " ") + field->second;
  }
  std::optional<uint64_t> before;
  {
    const std::lock_guard lock(limits().mutex);
    before = limits().limiter.admit(event, key.substr(0, 256), now());
  }
  if (before) {
    std::string line = format_event(event, fields);
    if (*before > 0) {
      append_field(line, "suppressed", std::to_string(*before));
    }
    spdlog::log(level, "{}", line);
  }
}

}  // namespace

std::string one_line(std::string_view text, size_t limit) {
  text = text.substr(0, limit);
  std::string line;
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = printable(text, &character);
    line += bytes > 0 ? text.substr(0, bytes) : "?";
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return line;
}

std::string format_event(std::string_view event, LogFields fields) {
  std::string line = "event=" + std::string(event);
  for (const auto& [name, value] : fields) {
    append_field(line, name, value);
  }
  return line;
}

void log_info(std::string_view event, LogFields fields) {
  log_event(spdlog::level::info, event, fields);
}

void log_warning(std::string_view event, LogFields fields) {
  log_event(spdlog::level::warn, event, fields);
}

void log_error(std::string_view event, LogFields fields) {
  log_event(spdlog::level::err, event, fields);
}

void log_suppressed() {
  std::vector<LogLimiter::Suppressed> expired;
  {
    const std::lock_guard lock(limits().mutex);
    expired = limits().limiter.take_expired(now());
  }
  for (const LogLimiter::Suppressed& each : expired) {
    spdlog::warn(
        "{}", format_event("suppressed",
                           {{"of", each.event}, {"like", each.key}, {"count", std::to_string(each.count)}}));
  }
}

}  // namespace gradwire::control
