// One event, one line: "event=peer_lost node=b cause=\"connection lost\"". Any thread, but never on the data
// path.
#pragma once

#include <spdlog/spdlog.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace gradwire::control {

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

std::string format_event(std::string_view event, LogFields fields);

inline void log_event(spdlog::level::level_enum level, std::string_view event, LogFields fields) {
  if (spdlog::should_log(level)) {
    spdlog::log(level, "{}", format_event(event, fields));
  }
}
inline void log_info(std::string_view event, LogFields fields) {
  log_event(spdlog::level::info, event, fields);
}
inline void log_warning(std::string_view event, LogFields fields) {
  log_event(spdlog::level::warn, event, fields);
}
inline void log_error(std::string_view event, LogFields fields) {
  log_event(spdlog::level::err, event, fields);
}

}  // namespace gradwire::control
