#include "transport/ucx/port_filter.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace gradwire::transport::ucx_internal {
namespace {

constexpr uint32_t kAccept = UINT32_MAX;  // as many bytes as there are
constexpr uint32_t kDrop = 0;
constexpr size_t kLeaf = 32;  // addresses that are compared one by one
constexpr uint32_t kNet = static_cast<uint32_t>(SKF_NET_OFF);
constexpr uint32_t kV4Source = 12;  // offsets within the IP header
constexpr uint32_t kV6Source = 8;

using Program = std::vector<sock_filter>;

sock_filter statement(uint16_t code, uint32_t k) {
  return {code, 0, 0, k};
}
sock_filter jump(uint16_t test, uint32_t k, size_t if_true, size_t if_false) {
  return {static_cast<uint16_t>(BPF_JMP | test | BPF_K), static_cast<uint8_t>(if_true),
          static_cast<uint8_t>(if_false), k};
}
sock_filter skip(size_t count) {
  return statement(BPF_JMP | BPF_JA, static_cast<uint32_t>(count));
}
sock_filter give(uint32_t verdict) {
  return statement(BPF_RET | BPF_K, verdict);
}
void append(Program& to, const Program& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Conditional jumps reach 255 instructions, skip() any distance.
Program search_v4(std::span<const NumericAddress> sorted) {
  Program program;
  if (sorted.size() <= kLeaf) {
    for (size_t i = 0; i < sorted.size(); ++i) {
      program.push_back(jump(BPF_JEQ, sorted[i].words[0], sorted.size() - i, 0));
    }
    program.push_back(give(kDrop));
    program.push_back(give(kAccept));
    return program;
  }
  const size_t middle = (sorted.size() / 2 + kLeaf - 1) / kLeaf * kLeaf;
  const Program left = search_v4(sorted.first(middle));
  program.push_back(jump(BPF_JGE, sorted[middle].words[0], 0, 1));
  program.push_back(skip(left.size()));
  append(program, left);
  append(program, search_v4(sorted.subspan(middle)));
  return program;
}

Program search_v6(std::span<const NumericAddress> hosts) {
  Program program;
  for (uint32_t word = 0; word < 4; ++word) {
    program.push_back(statement(BPF_LD | BPF_W | BPF_ABS, kNet + kV6Source + 4 * word));
    program.push_back(statement(BPF_ST, word));
  }
  for (const NumericAddress& host : hosts) {
    for (uint32_t word = 0; word < 4; ++word) {
      program.push_back(statement(BPF_LD | BPF_MEM, word));
      program.push_back(jump(BPF_JEQ, host.words[word], 0, 7 - 2 * word));
    }
    program.push_back(give(kAccept));
  }
  program.push_back(give(kDrop));
  return program;
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
  std::memcpy(address.words.data(), &v6, sizeof(v6));
  std::ranges::transform(address.words, address.words.begin(), [](uint32_t word) { return ntohl(word); });
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    address.words = {address.words[3], 0, 0, 0};
  } else {
    address.v6 = true;
  }
  return address;
}

Result<std::vector<sock_filter>> admission_filter(std::span<const NumericAddress> hosts) {
  std::vector<NumericAddress> v4(hosts.begin(), hosts.end());
  std::ranges::sort(v4);  // IPv4 first
  v4.erase(std::unique(v4.begin(), v4.end()), v4.end());
  const auto border = std::ranges::find_if(v4, [](const NumericAddress& host) { return host.v6; });
  const std::vector<NumericAddress> v6(border, v4.end());
  v4.erase(border, v4.end());

  Program of_v4 = {statement(BPF_LD | BPF_W | BPF_ABS, kNet + kV4Source)};
  append(of_v4, search_v4(v4));
  Program program = {
      statement(BPF_LD | BPF_B | BPF_ABS, kNet),  // version and header length
      statement(BPF_ALU | BPF_RSH | BPF_K, 4),
      jump(BPF_JEQ, 4, 0, 1),
      skip(3),
      jump(BPF_JEQ, 6, 0, 1),
      skip(1 + of_v4.size()),
      give(kDrop),
  };
  append(program, of_v4);
  append(program, search_v6(v6));
  if (program.size() > kMaxFilterInstructions) {
    return Status(Code::kResourceExhausted,
                  std::to_string(v4.size()) + " IPv4 and " + std::to_string(v6.size()) +
                      " IPv6 addresses of other nodes need a socket filter of " +
                      std::to_string(program.size()) + " instructions, but the kernel takes at most " +
                      std::to_string(kMaxFilterInstructions) +
                      "; name the data interface in transport.devices on every node, so that each has fewer");
  }
  return program;
}

}  // namespace gradwire::transport::ucx_internal
