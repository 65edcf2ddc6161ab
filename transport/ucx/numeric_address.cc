#include "transport/ucx/numeric_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace gradwire::transport::ucx_internal {
namespace {

NumericAddress from_v6(const in6_addr& v6) {
  NumericAddress address;
  std::memcpy(address.words.data(), &v6, sizeof(v6));
  std::ranges::transform(address.words, address.words.begin(), [](uint32_t word) { return ntohl(word); });
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    address.words = {address.words[3], 0, 0, 0};
  } else {
    address.v6 = true;
  }
  return address;
}

}  // namespace

Result<NumericAddress> parse_address(std::string_view text) {
  const std::string copy(text);
  NumericAddress address;
  in6_addr v6{};
  if (in_addr v4{}; ::inet_pton(AF_INET, copy.c_str(), &v4) == 1) {
    address.words[0] = ntohl(v4.s_addr);
    return address;
  }
  if (copy.size() != std::strlen(copy.c_str()) || ::inet_pton(AF_INET6, copy.c_str(), &v6) != 1) {
    return Status(Code::kInvalidArgument, "'" + copy.substr(0, 64) +
                                              "' is not a numeric IPv4 or IPv6 address; write for example "
                                              "10.0.0.1 or fd00::1");
  }
  return from_v6(v6);
}

Endpoint endpoint_of(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    endpoint.host.words[0] = ntohl(v4.sin_addr.s_addr);
    endpoint.port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    endpoint.host = from_v6(v6.sin6_addr);
    endpoint.port = ntohs(v6.sin6_port);
  }
  return endpoint;
}

}  // namespace gradwire::transport::ucx_internal
