#include "daemon/control/log.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <mutex>

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
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = byte(0) < 0x80   ? 1
                       : byte(0) < 0xC2 ? 0
                       : byte(0) < 0xE0 ? 2
                       : byte(0) < 0xF0 ? 3
                       : byte(0) < 0xF5 ? 4
                                        : 0;
  if (bytes == 0 || text.size() < bytes) {
    return 0;
  }
  constexpr std::array<unsigned, 5> kFirstBits = {0, 0x7F, 0x1F, 0x0F, 0x07};
  constexpr std::array<uint32_t, 5> kLowest = {0, 0, 0x80, 0x800, 0x10000};
  uint32_t value = byte(0) & kFirstBits[bytes];
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return 0;
    }
    value = value << 6U | (byte(i) & 0x3FU);
  }
  *character = value;
  const bool encoded = value >= kLowest[bytes] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  const bool control = value < 0x20 || (value >= 0x7F && value < 0xA0);
  // Line separators, and what turns the direction of writing.
  const bool turns = (value >= 0x200E && value <= 0x200F) || (value >= 0x2028 && value <= 0x202E) ||
                     (value >= 0x2066 && value <= 0x2069);
  return encoded && !control && !turns ? bytes : 0;
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
