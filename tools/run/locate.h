// Where the parts of Gradwire are, seen from the `gradwire` binary: in the build tree or installed.
#pragma once

#include <string>

#include "config/base/result.h"

namespace gradwire::tools {

// The running executable, links resolved, and its folder.
std::string executable_path();
std::string executable_folder();

// gradwired beside `folder`. kNotFound says where it was looked for.
Result<std::string> find_daemon(const std::string& folder);
// libgradwire.so, and the Python package (its folder `gradwire`); empty if not there.
std::string find_client_library(const std::string& folder);
std::string find_python_package(const std::string& folder);

}  // namespace gradwire::tools
