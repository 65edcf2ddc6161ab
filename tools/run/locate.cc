#include "tools/run/locate.h"

#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <vector>

namespace gradwire::tools {
namespace {

namespace fs = std::filesystem;

#ifndef GRADWIRE_LIBDIR
#define GRADWIRE_LIBDIR "lib"
#endif

std::vector<std::string> beside(const std::string& folder, std::initializer_list<const char*> places) {
  std::vector<std::string> out;
  for (const char* place : places) {
    out.push_back((fs::path(folder) / place).lexically_normal().string());
  }
  return out;
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

std::string executable_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : self.parent_path().string();
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

std::string find_client_library(const std::string& folder) {
  return first_existing(beside(folder, {"../client/libgradwire.so", "../" GRADWIRE_LIBDIR "/libgradwire.so.0",
                                        "../" GRADWIRE_LIBDIR "/libgradwire.so", "../lib/libgradwire.so"}));
}

std::string find_python_package(const std::string& folder) {
  const std::string package =
      first_existing(beside(folder, {"../python/gradwire", "../lib/python3/dist-packages/gradwire",
                                     "../" GRADWIRE_LIBDIR "/python3/dist-packages/gradwire"}));
  return package.empty() ? package : fs::path(package).parent_path().string();
}

}  // namespace gradwire::tools
