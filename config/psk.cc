#include "config/psk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "config/base/one_line.h"
#include "config/text.h"

namespace gradwire::config {
namespace {

Status unreadable_key(const std::string& path, int error) {
  const Code code = error == ENOENT                     ? Code::kNotFound
                    : error == EACCES || error == EPERM ? Code::kPermissionDenied
                                                        : Code::kInvalidArgument;
  return {code, "the key file " + in_quotes(path) + " cannot be read (" + std::strerror(error) +
                    "); check peers.key_file and the permissions for the daemon's user"};
}

Status wrong(const std::string& path, const std::string& what) {
  return {Code::kInvalidArgument, "the key file " + in_quotes(path) + " " + what};
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

unsigned hex_value(char c) {
  return c <= '9' ? static_cast<unsigned>(c - '0') : (static_cast<unsigned>(c) | 0x20U) - 'a' + 10U;
}

Result<std::vector<std::byte>> decode(const std::string& path, std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (find_control(text)) {
    return wrong(path,
                 "holds more than one line, control characters or bytes that are not UTF-8; write the key as "
                 "hex digits in one line");
  }
  std::vector<std::byte> key;
  if (text.size() >= 2 * kMinPskBytes && std::ranges::all_of(text, is_hex)) {
    if (text.size() % 2 != 0) {
      return wrong(path, "has " + std::to_string(text.size()) +
                             " hex digits; write an even number, two for each byte");
    }
    for (size_t i = 0; i < text.size(); i += 2) {
      key.push_back(static_cast<std::byte>(hex_value(text[i]) << 4U | hex_value(text[i + 1])));
    }
  } else {
    std::ranges::transform(text, std::back_inserter(key), [](char c) { return static_cast<std::byte>(c); });
  }
  if (key.size() < kMinPskBytes || key.size() > kMaxPskBytes) {
    return wrong(path, "holds a key of " + std::to_string(key.size()) +
                           " bytes; allowed are 16 to 256; make one with 'openssl rand -hex 32'");
  }
  return key;
}

}  // namespace

Result<std::vector<std::byte>> load_psk(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block the daemon
  if (fd < 0) {
    return unreadable_key(path, errno);
  }
  struct stat info {};
  char buffer[4096];
  const bool known = fstat(fd, &info) == 0;
  const ssize_t length = known && S_ISREG(info.st_mode) ? read(fd, buffer, sizeof buffer) : 0;
  const int error = errno;
  close(fd);
  if (!known || length < 0) {
    return unreadable_key(path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    return wrong(path, "is not a regular file; write the key into one");
  }
  if ((info.st_mode & 07U) != 0) {
    return Status(Code::kPermissionDenied, "the key file " + in_quotes(path) +
                                               " is open to every user of this machine; run 'chmod o= FILE' "
                                               "on it, and make a new key if others may have read it");
  }
  Result<std::vector<std::byte>> key = decode(path, std::string_view(buffer, static_cast<size_t>(length)));
  explicit_bzero(buffer, sizeof buffer);
  return key;
}

}  // namespace gradwire::config
