#include "tools/run/locate.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <vector>

namespace gradwire::tools {
namespace {

namespace fs = std::filesystem;

#ifndef GRADWIRE_LIBDIR
#define GRADWIRE_LIBDIR "lib"
#endif
#ifndef GRADWIRE_PYTHON_DIR
#define GRADWIRE_PYTHON_DIR "lib/python3/dist-packages"
#endif

std::vector<std::string> beside(const std::string& folder, std::initializer_list<const char*> places) {
  std::vector<std::string> out;
  for (const char* place : places) {
    out.push_back((fs::path(folder) / place).lexically_normal().string());
  }
  return out;
}

// Folders in a place beside `folder`, sorted.
std::vector<std::string> below(const std::string& folder, const char* place) {
  std::vector<std::string> found;
  std::error_code error;
  const fs::path parent = (fs::path(folder) / place).lexically_normal();
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (std::error_code ignored; at->is_directory(ignored)) {
      found.push_back(at->path().string());
    }
  }
  std::ranges::sort(found);
  return found;
}

std::string first_existing(const std::vector<std::string>& candidates) {
  for (const std::string& path : candidates) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      return path;
    }
  }
  return {};
}

}  // namespace

std::string executable_path() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? std::string() : self.string();
}

std::string executable_folder() {
  const std::string self = executable_path();
  return self.empty() ? std::string(".") : fs::path(self).parent_path().string();
}

Result<std::string> find_daemon(const std::string& folder) {
  const std::vector<std::string> places =
      beside(folder, {"gradwired", "../daemon/gradwired", "../daemon/control/gradwired", "../sbin/gradwired",
                      "../libexec/gradwire/gradwired", "../libexec/gradwired"});
  std::string looked;
  for (const std::string& path : places) {
    if (::access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path)) {
      return path;
    }
    looked += (looked.empty() ? "" : ", ") + path;
  }
  return Status(Code::kNotFound, "gradwired is not there (looked for " + looked + "); name it with --daemon");
}

// In the build tree, where the build was told to install it, and where an installation may have been moved
// to.
std::string find_client_library(const std::string& folder) {
  std::vector<std::string> places =
      beside(folder, {"../client/libgradwire.so.0", "../" GRADWIRE_LIBDIR "/libgradwire.so.0",
                      "../lib/libgradwire.so.0", "../lib64/libgradwire.so.0"});
  for (const std::string& library : below(folder, "../lib")) {
    places.push_back(library + "/libgradwire.so.0");
  }
  return first_existing(places);
}

std::string find_python_package(const std::string& folder) {
  std::vector<std::string> places = beside(folder, {"../python/gradwire"});
  // An absolute one stays as it is.
  const fs::path installed = fs::path(folder) / ".." / GRADWIRE_PYTHON_DIR / "gradwire";
  places.push_back(installed.lexically_normal().string());
  for (const std::string& python : below(folder, "../lib")) {
    if (fs::path(python).filename().string().starts_with("python3")) {
      places.push_back(python + "/dist-packages/gradwire");
      places.push_back(python + "/site-packages/gradwire");
    }
  }
  return first_existing(places);
}

}  // namespace gradwire::tools
