// The pre-shared key which the nodes' daemons prove to each other.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::config {

inline constexpr size_t kMinPskBytes = 16;
inline constexpr size_t kMaxPskBytes = 256;

// Reads a key: one line, either an even number of hex digits (at least 32, giving half as many bytes), or any
// other text of 16 to 256 bytes that is taken as it is. White space at the ends is dropped. The file must be
// a regular file without any permission for others (mode & 07 == 0). The key is never part of a message.
// kNotFound, kPermissionDenied, kInvalidArgument.
Result<std::vector<std::byte>> load_psk(const std::string& path);

}  // namespace gradwire::config
