// The socket filter that lets through packets by their source address: classic BPF, as SO_ATTACH_FILTER
// takes.
#pragma once

#include <linux/filter.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "config/base/result.h"

namespace gradwire::transport::ucx_internal {

inline constexpr size_t kMaxFilterInstructions = BPF_MAXINSNS;  // 4,096: the kernel's limit

// An IPv4 or IPv6 address as numbers. An IPv4 address has its value in words[0]; an IPv6 address that stands
// for an IPv4 one (::ffff:a.b.c.d) is that one, as its packets are.
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

// Accepts packets that come from `hosts`, drops all others. Runs in about log2(hosts) steps for IPv4, in
// linear time for IPv6. kResourceExhausted: more than the kernel's limit, which is reached at about 3,600
// IPv4 or 450 IPv6 addresses.
Result<std::vector<sock_filter>> admission_filter(std::span<const NumericAddress> hosts);

}  // namespace gradwire::transport::ucx_internal
