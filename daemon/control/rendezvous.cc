#include <ifaddrs.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>

#include "daemon/control/fields.h"
#include "daemon/control/peer_network.h"

namespace gradwire::control {

Result<HostPort> parse_rendezvous(const std::string& text) {
  HostPort result;
  std::string port;
  const auto bad = [&text] {
    return Status(Code::kInvalidArgument, "the rendezvous '" + clean(text, 100) +
                                              "' is not of the form HOST, HOST:PORT or [IPv6]:PORT");
  };
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':')) {
      return bad();
    }
    result.host = text.substr(1, end - 1);
    port = end + 2 <= text.size() ? text.substr(end + 2) : "";
  } else if (const size_t colon = text.find(':'); colon != text.rfind(':')) {
    result.host = text;  // an IPv6 address alone
  } else {
    result.host = text.substr(0, colon);
    port = colon == std::string::npos ? "" : text.substr(colon + 1);
    if (colon != std::string::npos && port.empty()) {
      return bad();
    }
  }
  if (result.host.empty()) {
    return bad();
  }
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
    if (error != std::errc() || end != port.data() + port.size() || result.port == 0) {
      return bad();
    }
  }
  return result;
}

bool is_local_interface(const asio::ip::address& wanted) {
  if (wanted.is_loopback()) {
    return true;
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return false;
  }
  bool found = false;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) {
      continue;
    }
    if (each->ifa_addr->sa_family == AF_INET && wanted.is_v4()) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      found = found || wanted.to_v4().to_uint() == ntohl(address->sin_addr.s_addr);
    } else if (each->ifa_addr->sa_family == AF_INET6 && wanted.is_v6()) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      found = found || std::memcmp(wanted.to_v6().to_bytes().data(), &address->sin6_addr, 16) == 0;
    }
  }
  freeifaddrs(list);
  return found;
}

}  // namespace gradwire::control
