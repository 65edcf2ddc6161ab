// Who gets through to the ports that UCX opens.
#include "transport/ucx/port_guard.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "tests/transport/transport_harness.h"
#include "transport/ucx/host_addresses.h"
#include "transport/ucx/port_filter.h"

namespace gradwire::transport::testing {
namespace {

using ::testing::HasSubstr;
using ucx_internal::admission_filter;
using ucx_internal::HostAddresses;
using ucx_internal::NumericAddress;
using ucx_internal::parse_address;
using ucx_internal::PortGuard;
using Hosts = std::vector<std::string>;

constexpr int kSilenceMs = 100;  // a connection over the loopback device takes microseconds

// What the kernel does with the instructions that admission_filter() uses.
bool accepts(const std::vector<sock_filter>& program, const std::string& source) {
  const NumericAddress from = parse_address(source).value();
  std::vector<uint8_t> packet(40);
  packet[0] = from.v6 ? 0x60 : 0x45;
  for (size_t i = 0; i < (from.v6 ? 4u : 1u); ++i) {
    const uint32_t word = htonl(from.words[i]);
    std::memcpy(&packet[(from.v6 ? 8 : 12) + 4 * i], &word, sizeof(word));
  }
  uint32_t a = 0;
  uint32_t memory[BPF_MEMWORDS] = {};
  for (size_t pc = 0;;) {
    const sock_filter& at = program.at(pc++);
    const uint32_t offset = at.k - static_cast<uint32_t>(SKF_NET_OFF);
    switch (at.code) {
      case BPF_LD | BPF_B | BPF_ABS:
        a = packet.at(offset);
        break;
      case BPF_LD | BPF_W | BPF_ABS:
        std::memcpy(&a, &packet.at(offset), sizeof(a));
        a = ntohl(a);
        break;
      case BPF_LD | BPF_MEM:
        a = memory[at.k];
        break;
      case BPF_ST:
        memory[at.k] = a;
        break;
      case BPF_ALU | BPF_RSH | BPF_K:
        a >>= at.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        pc += a == at.k ? at.jt : at.jf;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        pc += a >= at.k ? at.jt : at.jf;
        break;
      case BPF_JMP | BPF_JA:
        pc += at.k;
        break;
      case BPF_RET | BPF_K:
        return at.k != 0;
      default:
        ADD_FAILURE() << "instruction " << at.code;
        return false;
    }
  }
}

std::vector<NumericAddress> numbers(const Hosts& hosts) {
  std::vector<NumericAddress> all;
  for (const std::string& host : hosts) {
    all.push_back(parse_address(host).value());
  }
  return all;
}

TEST(PortFilter, LetsExactlyTheGivenAddressesThrough) {
  for (const int count : {0, 1, 2, 31, 32, 33, 64, 65, 100, 1'000, 3'500}) {
    Hosts hosts = {"fd00::1", "fd00::2", "2001:db8:1::ffff", "::ffff:172.16.0.9"};
    for (int i = 0; i < count; ++i) {
      hosts.push_back("10." + std::to_string(i / 100) + "." + std::to_string(i % 100 * 2) + ".7");
    }
    const auto filter = admission_filter(numbers(hosts));
    ASSERT_TRUE(filter.ok()) << filter.status().message();
    for (const std::string& host : hosts) {
      EXPECT_TRUE(accepts(*filter, host)) << host << " of " << count;
      NumericAddress other = parse_address(host).value();
      other.words[other.v6 ? 3 : 0] ^= 0x100;
      char text[INET6_ADDRSTRLEN];
      uint32_t words[4];
      for (int i = 0; i < 4; ++i) {
        words[i] = htonl(other.words[i]);
      }
      ::inet_ntop(other.v6 ? AF_INET6 : AF_INET, words, text, sizeof(text));
      EXPECT_FALSE(accepts(*filter, text)) << text << " of " << count;
    }
    for (const char* stranger : {"0.0.0.0", "9.255.255.255", "255.255.255.255", "::", "fd00::3", "::a00:7"}) {
      EXPECT_FALSE(accepts(*filter, stranger)) << stranger << " of " << count;
    }
  }
}

TEST(PortFilter, RefusesMoreThanTheKernelTakes) {
  std::vector<NumericAddress> many(5'000);
  for (uint32_t i = 0; i < many.size(); ++i) {
    many[i].words[0] = 0x0a000000 + i;
  }
  EXPECT_EQ(admission_filter(many).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(admission_filter(std::vector<NumericAddress>(5'000)).ok()) << "the same address counts once";
  EXPECT_THAT(admission_filter(many).status().message(), HasSubstr("5000 IPv4"));
}

TEST(PortFilter, TakesNumericAddressesOnly) {
  for (const char* text :
       {"", "localhost", "10.0.0", "10.0.0.256", "fe80::1%eth0", "10.0.0.1 ", "1.2.3.4/8"}) {
    EXPECT_EQ(parse_address(text).status().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_EQ(parse_address(std::string_view("::1\0x", 5)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(parse_address("::ffff:1.2.3.4").value(), parse_address("1.2.3.4").value());
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

sockaddr_in endpoint(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

struct Listener : Socket {
  Listener() : Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    const sockaddr_in address = endpoint("127.0.0.1", 0);
    EXPECT_EQ(::bind(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd(), 8), 0);
  }
  uint16_t port() const { return port_of(fd()); }
};

// A connection from an address of the loopback network.
struct Caller : Socket {
  Caller(const std::string& from, uint16_t port) : Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    const sockaddr_in source = endpoint(from, 0), target = endpoint("127.0.0.1", port);
    EXPECT_EQ(::bind(fd(), reinterpret_cast<const sockaddr*>(&source), sizeof(source)), 0);
    const int done = ::connect(fd(), reinterpret_cast<const sockaddr*>(&target), sizeof(target));
    pollfd ready{fd(), POLLOUT, 0};
    connected = done == 0 || (::poll(&ready, 1, kSilenceMs) == 1 && (ready.revents & POLLERR) == 0);
  }
  bool connected = false;
};

bool reaches(const std::string& from, uint16_t port) {
  return Caller(from, port).connected;
}

TEST(PortGuardTest, GuardsTheNewListenersOnlyAndNothingBeforeTheFirstAdmit) {
  const Listener old;
  const auto before = PortGuard::listening().value();
  const Listener fresh;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  EXPECT_EQ(guard.ports(), 1u);
  EXPECT_TRUE(reaches("127.0.0.1", fresh.port()));
  ASSERT_TRUE(guard.admit({}).ok());
  EXPECT_FALSE(reaches("127.0.0.1", fresh.port()));
  EXPECT_TRUE(reaches("127.0.0.1", old.port()));
}

TEST(PortGuardTest, SetsMayChangeAndOpenConnectionsStay) {
  const auto before = PortGuard::listening().value();
  const Listener listener;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.2", "127.0.0.4", "fd00::1"}).ok());
  EXPECT_FALSE(reaches("127.0.0.1", listener.port()));
  EXPECT_TRUE(reaches("127.0.0.4", listener.port()));
  const Caller admitted("127.0.0.2", listener.port());
  ASSERT_TRUE(admitted.connected);
  const Socket gone(::accept(listener.fd(), nullptr, nullptr));  // that of 127.0.0.4
  const Socket child(::accept(listener.fd(), nullptr, nullptr));
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.3"}).ok());
  EXPECT_FALSE(reaches("127.0.0.2", listener.port()));
  EXPECT_TRUE(reaches("127.0.0.3", listener.port()));
  char byte = 'x';
  EXPECT_EQ(::send(admitted.fd(), &byte, 1, 0), 1);
  pollfd ready{child.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 5'000), 1);
  EXPECT_EQ(::recv(child.fd(), &byte, 1, 0), 1);
  EXPECT_EQ(guard.admit(Hosts{"127.0.0.1", "nonsense"}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(reaches("127.0.0.3", listener.port())) << "a refused set changes nothing";
}

TEST(PortGuardTest, TheFirstAdmitEndsWhatStrangersHadOpened) {
  const auto before = PortGuard::listening().value();
  const Listener listener;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  const Caller stranger("127.0.0.8", listener.port()), node("127.0.0.2", listener.port());
  const Socket first(::accept(listener.fd(), nullptr, nullptr));
  const Socket second(::accept(listener.fd(), nullptr, nullptr));
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.2"}).ok());
  char byte = 0;
  pollfd ready{stranger.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 5'000), 1);
  EXPECT_EQ(::recv(stranger.fd(), &byte, 1, 0), 0);
  EXPECT_EQ(::recv(node.fd(), &byte, 1, 0), -1) << "is open";
}

TEST(PortGuardTest, LetsGoOfEverythingAlsoInAForkedChild) {
  const auto before = PortGuard::listening().value();
  const Listener listener;
  const ptrdiff_t open = open_descriptors();
  {
    PortGuard guard;
    ASSERT_TRUE(guard.adopt(before).ok());
    ASSERT_TRUE(guard.admit(Hosts{"127.0.0.2"}).ok());
    const pid_t child = ::fork();
    if (child == 0) {
      guard.release();
      ::_exit(open_descriptors() == open ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(reaches("127.0.0.1", listener.port())) << "the child's end changes nothing here";
  }
  EXPECT_EQ(open_descriptors(), open);
  EXPECT_TRUE(reaches("127.0.0.2", listener.port()));
}

// Sockets on which this process listens, by their ports.
std::map<uint16_t, int> listeners() {
  std::map<uint16_t, int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1) {
      found[port_of(fd)] = fd;
    }
  }
  return found;
}

std::map<uint16_t, int> opened_since(const std::map<uint16_t, int>& before) {
  std::map<uint16_t, int> opened = listeners();
  std::erase_if(opened, [&](const auto& listener) { return before.contains(listener.first); });
  return opened;
}

struct Node {
  Node() : transport(make_ucx_transport(loopback_options()).value()) { transport->set_receiver(&recorder); }
  Recorder recorder;
  Completions sends;
  std::unique_ptr<Transport> transport;
};

bool delivers(Node& from, Node& to) {
  const uint64_t before = to.recorder.messages;
  const auto fabric = make_ucx_fabric();
  const auto peer = from.transport->connect(to.transport->address());
  if (!peer.ok()) {
    return false;
  }
  from.transport->send(*peer, bytes_of("x"), {}, &from.sends);
  const bool arrived = drive(*fabric, {from.transport.get(), to.transport.get()},
                             [&] { return to.recorder.messages > before; });
  from.transport->disconnect(*peer);
  return arrived;
}

TEST(UcxAdmission, StrangersReachNothingAndNeighboursReachEverything) {
  const auto before = listeners();
  Node a;
  const auto opened = opened_since(before);
  ASSERT_EQ(opened.size(), 1u);
  const uint16_t port = opened.begin()->first;
  Node b;
  ASSERT_TRUE(a.transport->admit({}).ok());
  {
    // Thirteen bytes of a UCX hello with an identifier out of range would end a process that hears them.
    const Caller stranger("127.0.0.1", port);
    EXPECT_FALSE(stranger.connected);
    unsigned char hello[13] = {0x78, 0x56, 0x34, 0x12, 0xbe, 0xba, 0xfe, 0xca, 0, 0xff, 0xff, 0xff, 0xff};
    EXPECT_LT(::send(stranger.fd(), hello, sizeof(hello), MSG_NOSIGNAL), 0);
  }
  ASSERT_TRUE(a.transport->admit(b.transport->hosts()).ok());
  ASSERT_TRUE(b.transport->admit(a.transport->hosts()).ok());
  EXPECT_FALSE(reaches("127.0.0.2", port));
  EXPECT_TRUE(delivers(b, a));
  EXPECT_TRUE(delivers(a, b));
  ASSERT_TRUE(a.transport->admit({}).ok());
  EXPECT_FALSE(reaches("127.0.0.1", port));
}

TEST(UcxAdmission, WhereTheSystemHasNoFilterItIsSaidOnce) {
  const auto before = listeners();
  Node a;
  sock_filter everybody = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
  const sock_fprog program{1, &everybody};
  const int on = 1;
  for (const auto& [port, fd] : opened_since(before)) {  // as if it could not be set
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)), 0);
  }
  ::testing::internal::CaptureStderr();
  const Status first = a.transport->admit({}), second = a.transport->admit({});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(first.code(), Code::kUnsupported);
  EXPECT_EQ(second.code(), Code::kUnsupported);
  EXPECT_THAT(said, HasSubstr(first.message()));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(UcxAdmission, ANeighbourElsewhereThatNamesTheLoopbackDeviceLetsNobodyIn) {
  const HostAddresses here;
  EXPECT_THAT(here.without_own_unless_complete(Hosts{"127.0.0.1", "127.3.0.1", "::1", "192.0.2.77"},
                                               Hosts{"127.0.0.1", "192.0.2.99"}),
              ::testing::ElementsAre("192.0.2.77"));
  const Hosts all = {"127.0.0.1", "192.0.2.99", "192.0.2.77"};
  EXPECT_EQ(here.without_own_unless_complete(all, Hosts{"127.0.0.1", "192.0.2.99", "fd00::abcd"}), all);
}

TEST(UcxAdmission, HostsAreThoseOfTheDevices) {
  const Hosts loopback = HostAddresses().of_devices("lo");
  EXPECT_THAT(loopback, ::testing::Contains("127.0.0.1"));
  const Hosts all = HostAddresses().of_devices("");
  EXPECT_GE(all.size(), loopback.size());
  for (const std::string& host : all) {
    EXPECT_TRUE(parse_address(host).ok()) << host;
    EXPECT_FALSE(host.starts_with("fe80:")) << host;
  }
  EXPECT_EQ(HostAddresses().of_devices("nosuchdevice0"), all);
}

}  // namespace
}  // namespace gradwire::transport::testing
