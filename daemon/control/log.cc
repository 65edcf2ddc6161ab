#include "daemon/control/log.h"

#include <spdlog/spdlog.h>

namespace gradwire::control {
namespace {

bool is_plain(std::string_view value) {
  return !value.empty() && value.find_first_of(" \"=\t\n\r\\") == std::string_view::npos;
}

void log_event(spdlog::level::level_enum level, std::string_view event, LogFields fields) {
  if (spdlog::should_log(level)) {
    spdlog::log(level, "{}", format_event(event, fields));
  }
}

}  // namespace

std::string format_event(std::string_view event, LogFields fields) {
  std::string line = "event=" + std::string(event);
  for (const auto& [name, value] : fields) {
    line += ' ';
    line += name;
    line += '=';
    if (is_plain(value)) {
      line += value;
      continue;
    }
    line += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        line += '\\';
      }
      line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    line += '"';
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

}  // namespace gradwire::control
