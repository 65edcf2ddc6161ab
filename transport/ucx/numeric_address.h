// IP addresses as numbers, for comparing.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "config/base/result.h"

namespace gradwire::transport::ucx_internal {

// An IPv4 or IPv6 address. An IPv4 address has its value in words[0]; an IPv6 address that stands for an IPv4
// one (::ffff:a.b.c.d) is that one.
struct NumericAddress {
  bool v6 = false;
  std::array<uint32_t, 4> words{};
  bool operator==(const NumericAddress&) const = default;
  std::strong_ordering operator<=>(const NumericAddress& other) const {
    return std::tie(v6, words) <=> std::tie(other.v6, other.words);
  }
};

// kInvalidArgument: not a numeric address ("fe80::1%eth0" is none either).
Result<NumericAddress> parse_address(std::string_view text);

// The host and the port that a socket's address names. Port 0: it is of neither family.
struct Endpoint {
  NumericAddress host;
  uint16_t port = 0;
};
Endpoint endpoint_of(const sockaddr_storage& address);

}  // namespace gradwire::transport::ucx_internal
