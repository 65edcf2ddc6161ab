#include "transport/ucx/host_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport {
namespace ucx_internal {
namespace {

bool is_loopback(const NumericAddress& address) {
  return address.v6 ? address.words == std::array<uint32_t, 4>{0, 0, 0, 1} : address.words[0] >> 24 == 127;
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return all;
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) {
      continue;
    }
    InterfaceAddress found;
    found.interface = at->ifa_name;
    found.up = (at->ifa_flags & IFF_UP) != 0;
    char text[INET6_ADDRSTRLEN] = "";
    if (at->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof(text));
      if (at->ifa_netmask != nullptr) {
        found.mask = ntohl(reinterpret_cast<const sockaddr_in*>(at->ifa_netmask)->sin_addr.s_addr);
      }
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
        continue;
      }
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    }
    if (const auto address = parse_address(text); address.ok()) {
      found.text = text;
      found.address = *address;
      all.push_back(std::move(found));
    }
  }
  return all;
}

// The network interfaces behind UCX's device names: "eth0" itself, and those of an adapter "mlx5_0:1".
std::set<std::string> interfaces_of(std::string_view devices) {
  std::set<std::string> names;
  while (!devices.empty()) {
    const size_t comma = std::min(devices.find(','), devices.size());
    const std::string device(devices.substr(0, comma));
    devices.remove_prefix(std::min(comma + 1, devices.size()));
    names.insert(device);
    const std::filesystem::path adapter =
        std::filesystem::path("/sys/class/infiniband") / device.substr(0, device.find(':')) / "device/net";
    std::error_code error;
    for (std::filesystem::directory_iterator at(adapter, error), end; !error && at != end;
         at.increment(error)) {
      names.insert(at->path().filename().string());
    }
  }
  return names;
}

}  // namespace

HostAddresses::HostAddresses() : all_(interface_addresses()) {}

std::vector<std::string> HostAddresses::of_devices(std::string_view devices) const {
  std::vector<InterfaceAddress> all = all_;
  std::erase_if(all, [](const InterfaceAddress& found) { return !found.up; });
  // Adapters before bridges and tunnels, of which a host may have hundreds.
  std::stable_partition(all.begin(), all.end(), [](const InterfaceAddress& found) {
    std::error_code error;
    return std::filesystem::exists("/sys/class/net/" + found.interface + "/device", error);
  });
  const std::set<std::string> names = interfaces_of(devices);
  std::vector<InterfaceAddress> chosen;
  std::ranges::copy_if(all, std::back_inserter(chosen),
                       [&](const InterfaceAddress& found) { return names.contains(found.interface); });
  std::vector<std::string> hosts;
  for (const InterfaceAddress& found : all) {
    const bool reaches = std::ranges::any_of(chosen, [&](const InterfaceAddress& device) {
      return device.interface == found.interface ||
             (!device.address.v6 && !found.address.v6 && device.mask != 0 &&
              ((device.address.words[0] ^ found.address.words[0]) & device.mask) == 0);
    });
    const bool fresh = std::ranges::find(hosts, found.text) == hosts.end();
    if ((chosen.empty() || reaches) && fresh && hosts.size() < kMaxHosts) {
      hosts.push_back(found.text);
    }
  }
  return hosts;
}

std::vector<std::string> HostAddresses::without_own_unless_complete(std::span<const std::string> hosts,
                                                                    std::span<const std::string> own) const {
  std::set<NumericAddress> given, expected;
  for (const std::string& host : hosts) {
    if (const auto address = parse_address(host); address.ok()) {
      given.insert(*address);
    }
  }
  for (const std::string& host : own) {
    if (const auto address = parse_address(host); address.ok()) {
      expected.insert(*address);
    }
  }
  // IPv6 addresses come and go (privacy extensions).
  if (std::ranges::any_of(expected, [](const NumericAddress& address) { return !address.v6; })) {
    std::erase_if(expected, [](const NumericAddress& address) { return address.v6; });
  }
  if (!expected.empty() && std::ranges::includes(given, expected)) {
    return {hosts.begin(), hosts.end()};
  }
  std::set<NumericAddress> here;
  for (const InterfaceAddress& found : all_) {
    here.insert(found.address);
  }
  std::vector<std::string> others;
  std::ranges::copy_if(hosts, std::back_inserter(others), [&](const std::string& host) {
    const auto address = parse_address(host);
    return !address.ok() || (!here.contains(*address) && !is_loopback(*address));
  });
  return others;
}

}  // namespace ucx_internal

std::string device_of_address(std::string_view numeric_address) {
  using ucx_internal::InterfaceAddress;
  const auto wanted = ucx_internal::parse_address(numeric_address);
  if (!wanted.ok()) {
    return {};
  }
  const ucx_internal::HostAddresses here;
  for (const bool exactly : {true, false}) {
    for (const InterfaceAddress& found : here.all()) {
      const bool same = exactly
                            ? found.address == *wanted
                            : ucx_internal::is_loopback(*wanted) && ucx_internal::is_loopback(found.address);
      if (found.up && same) {
        return found.interface;
      }
    }
  }
  return {};
}

}  // namespace gradwire::transport
