#include "config/config.h"
#include "config/format.h"

namespace gradwire::config {

std::vector<Change> list_changes(const Config& before, const Config& after) {
  std::vector<Change> changes;
  for (const Option& option : options()) {
    std::string old_value = format_value(option, before);
    std::string new_value = format_value(option, after);
    if (old_value != new_value) {
      changes.push_back({std::string(option.name), std::move(old_value), std::move(new_value)});
    }
  }
  return changes;
}

}  // namespace gradwire::config
