// The documentation of all options, generated from the table.
#pragma once

#include <string>

namespace gradwire::config {

std::string reference_markdown();  // docs/configuration.md
std::string reference_man();       // gradwired.yaml(5), in man(7) macros

}  // namespace gradwire::config
