#include "tools/discover.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "tools/counters_reader.h"

namespace gradwire::tools {
namespace {

namespace fs = std::filesystem;

// The folders in `parent` whose name begins so and that nobody else can write to: /tmp is everybody's.
std::vector<std::string> own_folders(const std::string& parent, std::string_view prefix) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    struct stat info {};
    if (at->path().filename().string().starts_with(prefix) && ::lstat(path.c_str(), &info) == 0 &&
        S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 022) == 0) {
      found.push_back(path);
    }
  }
  std::ranges::sort(found, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;  // node2 before node10
  });
  return found;
}

}  // namespace

std::vector<std::string> find_run_daemons(const std::string& parent) {
  std::vector<std::string> dirs;
  for (const std::string& run : own_folders(parent, "gradwire-run.")) {
    for (const std::string& node : own_folders(run, "node")) {
      if (is_page_held(counters_path(node))) {
        dirs.push_back(node);
      }
    }
  }
  return dirs;
}

std::string run_parent() {
  const char* parent = ::getenv("TMPDIR");
  return parent != nullptr && *parent != '\0' ? parent : "/tmp";
}

std::vector<std::string> default_runtime_dirs(const std::string& service_dir) {
  std::vector<std::string> dirs = find_run_daemons(run_parent());
  std::error_code error;
  if (dirs.empty() || fs::exists(counters_path(service_dir), error)) {
    dirs.insert(dirs.begin(), service_dir);
  }
  return dirs;
}

}  // namespace gradwire::tools
