// One event, one line: "event=peer_lost node=b cause=\"connection lost\"". Any thread, but never on the data
// path.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace gradwire::control {

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

std::string format_event(std::string_view event, LogFields fields);

void log_info(std::string_view event, LogFields fields);
void log_warning(std::string_view event, LogFields fields);
void log_error(std::string_view event, LogFields fields);

}  // namespace gradwire::control
