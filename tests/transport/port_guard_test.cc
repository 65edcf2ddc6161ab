// Who gets through to the ports that UCX opens. Also where this program has no privileges.
#include "transport/ucx/port_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>

#include "tests/transport/transport_harness.h"
#include "transport/ucx/host_addresses.h"
#include "transport/ucx/numeric_address.h"

namespace gradwire::transport::testing {
namespace {

using ::testing::HasSubstr;
using ucx_internal::HostAddresses;
using ucx_internal::parse_address;
using ucx_internal::PortGuard;
using Hosts = std::vector<std::string>;

constexpr int kSilenceMs = 100;  // who is turned away over the loopback device hears it in microseconds

TEST(NumericAddresses, AreInDigitsOnly) {
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
    EXPECT_EQ(::listen(fd(), 128), 0);
  }
  uint16_t port() const { return port_of(fd()); }
};

// A connection from an address of the loopback network; the kernel makes it, whoever accepts it.
struct Caller : Socket {
  Caller(const std::string& from, uint16_t port) : Socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in source = endpoint(from, 0), target = endpoint("127.0.0.1", port);
    EXPECT_EQ(::bind(fd(), reinterpret_cast<const sockaddr*>(&source), sizeof(source)), 0);
    EXPECT_EQ(::connect(fd(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)), 0);
  }
  // Within the time the other side closes it.
  bool is_turned_away(int milliseconds) const {
    pollfd ready{fd(), POLLIN, 0};
    char byte = 0;
    return ::poll(&ready, 1, milliseconds) == 1 && ::recv(fd(), &byte, 1, 0) <= 0;
  }
};

// Nobody else waits there.
bool reaches(const std::string& from, const Listener& to) {
  const Caller caller(from, to.port());
  const Socket accepted(::accept(to.fd(), nullptr, nullptr));
  EXPECT_EQ(accepted.fd() < 0, caller.is_turned_away(accepted.fd() < 0 ? 5'000 : 0));
  return accepted.fd() >= 0;
}

TEST(PortGuardTest, GuardsTheNewListenersOnlyAndNothingBeforeTheFirstAdmit) {
  const Listener old;
  const auto before = PortGuard::listening().value();
  const Listener fresh;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  EXPECT_EQ(guard.ports(), 1u);
  EXPECT_TRUE(reaches("127.0.0.1", fresh));
  ASSERT_TRUE(guard.admit({}).ok());
  EXPECT_FALSE(reaches("127.0.0.1", fresh));
  EXPECT_TRUE(reaches("127.0.0.1", old));
}

TEST(PortGuardTest, SetsMayChangeAndOpenConnectionsStay) {
  const auto before = PortGuard::listening().value();
  const Listener listener;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.2", "127.0.0.4", "fd00::1"}).ok());
  EXPECT_FALSE(reaches("127.0.0.1", listener));
  EXPECT_TRUE(reaches("127.0.0.4", listener));
  const Caller admitted("127.0.0.2", listener.port());
  const Socket child(::accept(listener.fd(), nullptr, nullptr));
  ASSERT_GE(child.fd(), 0);
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.3"}).ok());
  EXPECT_FALSE(reaches("127.0.0.2", listener));
  EXPECT_TRUE(reaches("127.0.0.3", listener));
  char byte = 'x';
  EXPECT_EQ(::send(admitted.fd(), &byte, 1, 0), 1);
  pollfd ready{child.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 5'000), 1);
  EXPECT_EQ(::recv(child.fd(), &byte, 1, 0), 1);
  EXPECT_EQ(guard.admit(Hosts{"127.0.0.1", "nonsense"}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(reaches("127.0.0.3", listener)) << "a refused set changes nothing";
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
  EXPECT_EQ(::recv(node.fd(), &byte, 1, MSG_DONTWAIT), -1) << "is open";
}

TEST(PortGuardTest, SaysWhoWasLetInAndTakesStrangersInPortions) {
  const auto before = PortGuard::listening().value();
  const Listener listener;
  PortGuard guard;
  ASSERT_TRUE(guard.adopt(before).ok());
  ASSERT_TRUE(guard.admit(Hosts{"127.0.0.2"}).ok());
  std::vector<std::unique_ptr<Caller>> strangers;
  for (int i = 0; i < 70; ++i) {
    strangers.push_back(std::make_unique<Caller>("127.0.0.9", listener.port()));
  }
  const Caller node("127.0.0.2", listener.port());
  EXPECT_LT(::accept(listener.fd(), nullptr, nullptr), 0);
  EXPECT_EQ(errno, EAGAIN);
  sockaddr_in from{};
  socklen_t size = sizeof(from);
  const Socket accepted(::accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
  ASSERT_GE(accepted.fd(), 0);
  EXPECT_EQ(size, sizeof(from));
  EXPECT_EQ(from.sin_addr.s_addr, endpoint("127.0.0.2", 0).sin_addr.s_addr);
  EXPECT_EQ(::fcntl(accepted.fd(), F_GETFD), FD_CLOEXEC);
  for (const auto& stranger : strangers) {
    EXPECT_TRUE(stranger->is_turned_away(5'000));
  }
  EXPECT_FALSE(node.is_turned_away(0));
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
    EXPECT_FALSE(reaches("127.0.0.1", listener)) << "the child's end changes nothing here";
  }
  EXPECT_EQ(open_descriptors(), open);
  EXPECT_TRUE(reaches("127.0.0.2", listener));
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
    unsigned char hello[13] = {0x78, 0x56, 0x34, 0x12, 0xbe, 0xba, 0xfe, 0xca, 0, 0xff, 0xff, 0xff, 0xff};
    (void)::send(stranger.fd(), hello, sizeof(hello), MSG_NOSIGNAL);
    EXPECT_TRUE(stranger.is_turned_away(5'000));
  }
  ASSERT_TRUE(a.transport->admit(b.transport->hosts()).ok());
  ASSERT_TRUE(b.transport->admit(a.transport->hosts()).ok());
  EXPECT_TRUE(Caller("127.0.0.2", port).is_turned_away(5'000));
  EXPECT_FALSE(Caller("127.0.0.1", port).is_turned_away(kSilenceMs));
  EXPECT_TRUE(delivers(b, a));
  EXPECT_TRUE(delivers(a, b));
  ASSERT_TRUE(a.transport->admit({}).ok());
  EXPECT_TRUE(Caller("127.0.0.1", port).is_turned_away(5'000));
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
