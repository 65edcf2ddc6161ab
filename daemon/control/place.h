// Sentences about places that the configuration names: paths, and addresses to listen on.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "config/base/result.h"

namespace gradwire::control {

// What a failed call says. kInvalidArgument: somebody has to change the place, its permissions or the option
// first; kUnavailable: it may pass by itself.
inline Status place_failed(const std::string& what, int error, const std::string& remedy) {
  Code code = Code::kUnavailable;
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:
    case ENODEV:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
      code = Code::kInvalidArgument;
      break;
    default:
      break;
  }
  return {code, what + ": " + std::strerror(error) + "; " + remedy};
}

}  // namespace gradwire::control
