#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

bool is_plain(std::string_view value) {
  return !value.empty() && value.find_first_of(" \"=\t\n\r\\") == std::string_view::npos;
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

}  // namespace gradwire::control
