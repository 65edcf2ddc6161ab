// The Transport over UCX (1.13 or later): one context and one worker, used by one thread.
//
// Every message is one eager active message. On tcp a message of header + max_payload() fits in one segment
// of UCX's transport, so that it is received without assembly and read in place: a fragment carries
// segment_bytes - 8 bytes of ours (measured on 1.13.1: 131,064 of 131,072 for headers of 0, 16 and 128
// bytes), and max_payload() = segment_bytes - 1,024 leaves room for the header and for other versions of UCX.
// Messages that arrive by rendezvous do not come from a Gradwire transport and are refused.
//
// An idle connection may learn late, or never, that its peer is gone; so may one to a host that does not
// answer.
//
// UCX trusts whoever reaches its TCP ports. admit() keeps everybody else away by a filter on the ports; names
// of this host are told by hosts(): the addresses of the devices in use. This host's own addresses are
// admitted only where the neighbours name all of them, because one is on this host itself; admit() sees their
// union and cannot tell who named what.
//
// UCX_* variables in the environment win over the defaults here and over `overrides`; the segment size is the
// exception, because both sides must agree on it: it travels in the address, and connect() refuses another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/result.h"
#include "transport/transport.h"

namespace gradwire::transport {

struct UcxOptions {
  std::string tls = "tcp,self";  // UCX_TLS: the transports that UCX may choose from
  std::string net_devices{};     // UCX_NET_DEVICES: "eth0", "mlx5_0:1"; empty lets UCX choose
  // More of UCX's variables, by their name without "UCX_": {"TCP_SNDBUF", "4M"}. They are put into the
  // process's environment, where only UCX reads them; so no other thread may use the environment meanwhile.
  std::vector<std::pair<std::string, std::string>> overrides{};
  uint32_t segment_bytes = 128 * 1024;  // of 8 KiB to 1 MiB; equal on all nodes
  uint32_t send_window = 8;             // segments in flight per peer: measured best for 128 KiB
};

// kInvalidArgument: a name in tls, net_devices or overrides that UCX does not know, or a device that is not
// there; the message lists what is. kUnsupported: none of the transports can reach another host from here.
Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options);

// The interface that has this numeric address and is up, as net_devices names it ("eth0"; "lo" for every
// 127.x.y.z); empty: none has it. Thread-safe.
std::string device_of_address(std::string_view numeric_address);

// What UCX reads when its library is loaded, before main(): whoever starts a daemon sets these, unless they
// are set already. UCX_MEM_MMAP_HOOK_MODE=none keeps UCX from patching mmap and munmap of the process. (The
// crash handlers that it installs there are undone by make_ucx_transport.)
std::vector<std::pair<std::string, std::string>> ucx_start_environment();

}  // namespace gradwire::transport
