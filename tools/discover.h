// Where this user's daemons are, when nobody says it.
#pragma once

#include <string>
#include <vector>

namespace gradwire::tools {

// The runtime directories of the daemons that `gradwire run` has running now for this user: folders
// gradwire-run.*/node* in `parent` that are this user's alone and whose counters page is held. Sorted.
std::vector<std::string> find_run_daemons(const std::string& parent);

// $TMPDIR, else /tmp: where `gradwire run` makes its folders.
std::string run_parent();

// What `gradwire status` looks at by default: the service's directory, and the daemons of `gradwire run`. The
// service's is left out where there is nothing, but there are others.
std::vector<std::string> default_runtime_dirs(const std::string& service_dir);

}  // namespace gradwire::tools
