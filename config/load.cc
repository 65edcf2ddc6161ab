#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "config/apply.h"
#include "config/base/one_line.h"
#include "config/config.h"
#include "config/format.h"
#include "config/text.h"
#include "config/values.h"
#include "config/yaml_tree.h"

namespace gradwire::config {
namespace {

Status cannot_read(const std::string& path, int error) {
  const Code code = error == ENOENT   ? Code::kNotFound
                    : error == EACCES ? Code::kPermissionDenied
                                      : Code::kInvalidArgument;
  return {code, path + ": cannot be read (" + std::strerror(error) + "); check the path and its permissions"};
}

Result<std::string> read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is not waited for
  if (fd < 0) {
    return cannot_read(path, errno);
  }
  struct stat info {};
  if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
    close(fd);
    return Status(Code::kInvalidArgument,
                  path + (S_ISDIR(info.st_mode) ? ": is a directory; name the YAML file in it"
                                                : ": is not a regular file; name the YAML file"));
  }
  std::string text(kMaxFileBytes + 1, '\0');  // one byte more than is allowed shows a file that is too large
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = read(fd, text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      const int error = errno;
      close(fd);
      return cannot_read(path, error);
    }
    if (got == 0) {
      break;
    }
    length += static_cast<size_t>(got);
  }
  close(fd);
  text.resize(length);
  return text;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0' || find_control(name)) {
    return "localhost";
  }
  return name;
}

void apply_environment(Applier& applier) {
  // systemd separates several directories by colons; the first is ours (systemd.exec(5), RuntimeDirectory=).
  const char* const value = std::getenv("RUNTIME_DIRECTORY");
  if (value != nullptr && *value != '\0') {
    const std::string_view all = value;
    applier.apply_text("node.runtime_dir", all.substr(0, all.find(':')),
                       {Source::Kind::kEnvironment, "environment RUNTIME_DIRECTORY"});
  }
}

void check_together(Applier& applier) {
  const Config& config = applier.loaded().config;
  if (config.clocks.operation_timeout < config.clocks.peer_timeout) {
    const std::string peer = format_value(*find_option("clocks.peer_timeout"), config);
    const std::string operation = format_value(*find_option("clocks.operation_timeout"), config);
    const bool is_default = applier.is_default("clocks.operation_timeout");
    applier.fail_at(is_default ? "clocks.peer_timeout" : "clocks.operation_timeout",
                    "clocks.operation_timeout",
                    in_quotes(operation) + " is shorter than clocks.peer_timeout; allowed " + peer +
                        " to 1d; write for example " + peer);
  }
}

}  // namespace

Result<LoadedConfig> load_config(const std::optional<std::string>& file,
                                 const std::vector<std::string>& overrides) {
  Applier applier;
  apply_environment(applier);
  if (file) {
    const Result<std::string> text = read_file(*file);
    GRADWIRE_RETURN_IF_ERROR(text.status());
    const std::string shown = shown_path(*file);
    const Result<YamlNode> root = parse_yaml(*text);
    if (root.ok()) {
      applier.apply_document(*root, shown);
    } else {
      applier.fail(shown + ":" + root.status().message());
    }
  }
  for (const std::string& override : overrides) {
    applier.apply_override(override);
  }
  check_together(applier);
  if (!applier.errors().empty()) {
    std::string message;
    for (const std::string& error : applier.errors()) {
      message += (message.empty() ? "" : "\n") + error;
    }
    return Status(Code::kInvalidArgument, message);
  }
  LoadedConfig loaded = applier.take();
  NodeOptions& node = loaded.config.node;
  if (node.name.empty()) {
    node.name = host_name();
  }
  if (node.socket.empty()) {
    node.socket = node.runtime_dir + (node.runtime_dir.ends_with('/') ? "" : "/") + "gradwired.sock";
  }
  return loaded;
}

}  // namespace gradwire::config
