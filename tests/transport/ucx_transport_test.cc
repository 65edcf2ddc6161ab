// What the UCX transport promises beyond the contract: deaths of processes, sleep, options, foreign messages.
#include "transport/ucx/ucx_transport.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <ucp/api/ucp.h>

#include <csignal>
#include <string>

#include "tests/transport/child_process.h"
#include "tests/transport/transport_harness.h"

namespace gradwire::transport::testing {
namespace {

std::unique_ptr<Transport> make() {
  return make_ucx_transport(loopback_options()).value();
}

struct Local {
  Local() { transport->set_receiver(&recorder); }
  bool until(const std::function<bool()>& done) {
    const auto fabric = make_ucx_fabric();
    return drive(*fabric, {transport.get()}, done);
  }
  Recorder recorder;
  Completions sends;
  std::unique_ptr<Transport> transport = make();
};

// A transport_peer that knows our address and is connected to us.
struct Remote {
  Remote(const std::string& mode, size_t payload, Local& local)
      : process({TRANSPORT_PEER, mode, std::to_string(payload)}), address(from_hex(process.read_line())) {
    EXPECT_TRUE(process.write_line(to_hex(local.transport->address())));
  }
  ChildProcess process;
  std::string address;
};

// Keeps a window of full payloads in flight until a send fails: to a connection that is lost, of which poll()
// has not told yet, every further one ends at once.
struct Flood {
  void pump() {
    while (started < local.sends.total + local.transport->send_window() &&
           local.sends.total == local.sends.ok) {
      ++started;
      local.transport->send(peer, bytes_of("flood"), payload, &local.sends);
    }
  }
  Local& local;
  PeerId peer;
  std::vector<std::byte> payload = pattern(local.transport->max_payload(), 9);
  uint64_t started = 0;
};

TEST(UcxPeerDeath, KilledProcessBecomesAnErrorAndEverySendEnds) {
  Local local;
  local.recorder.keep = false;
  for (int round = 0; round < 6; ++round) {
    local.recorder.errors.clear();
    local.recorder.messages = 0;
    local.sends = {};
    Remote remote("stream", local.transport->max_payload(), local);
    Flood flood{local, local.transport->connect(remote.address).value()};
    ASSERT_TRUE(local.until([&] {
      flood.pump();
      return local.recorder.messages >= 50 && local.sends.ok >= 50;
    }));
    remote.process.signal(SIGKILL);
    ASSERT_TRUE(local.until([&] {
      flood.pump();
      return !local.recorder.errors.empty();
    }));
    EXPECT_EQ(local.recorder.errors[0], flood.peer);
    EXPECT_EQ(local.recorder.error.code(), Code::kUnavailable);
    local.transport->disconnect(flood.peer);
    EXPECT_EQ(local.sends.total, flood.started);
  }
  Remote remote("echo", 0, local);
  local.recorder.errors.clear();
  local.recorder.messages = 0;
  local.transport->send(local.transport->connect(remote.address).value(), bytes_of("x"), {}, &local.sends);
  EXPECT_TRUE(local.until([&] { return local.recorder.messages > 0; }));
}

TEST(UcxPeerDeath, StoppedProcessDoesNotHoldUpADisconnect) {
  Local local;
  Remote remote("sink", 0, local);
  Flood flood{local, local.transport->connect(remote.address).value()};
  ASSERT_TRUE(local.until([&] {
    flood.pump();
    return local.sends.ok >= 20;
  }));
  remote.process.signal(SIGSTOP);
  uint64_t seen = 0;
  for (int idle = 0; idle < 20'000; ++idle) {
    flood.pump();
    local.transport->poll();
    if (local.sends.total != seen) {
      seen = local.sends.total;
      idle = 0;
    }
  }
  EXPECT_GT(flood.started, local.sends.total);
  local.transport->disconnect(flood.peer);
  EXPECT_EQ(local.sends.total, flood.started);
  EXPECT_GT(local.sends.aborted, 0u);
  Remote other("echo", 0, local);
  local.transport->send(local.transport->connect(other.address).value(), bytes_of("x"), {}, &local.sends);
  EXPECT_TRUE(local.until([&] { return local.recorder.messages == 1; }));
}

TEST(UcxPeerDeath, AddressOfADeadProcessIsRefusedOrBecomesAnError) {
  Local local;
  std::string address;
  {
    Remote remote("sink", 0, local);
    address = remote.address;
  }
  auto peer = local.transport->connect(address);
  if (peer.ok()) {
    local.transport->send(*peer, bytes_of("x"), {}, &local.sends);
    EXPECT_TRUE(local.until([&] { return !local.recorder.errors.empty(); }));
    local.transport->disconnect(*peer);
    EXPECT_EQ(local.sends.total, 1u);
    EXPECT_EQ(local.sends.ok, 0u);
  } else {
    EXPECT_EQ(peer.status().code(), Code::kUnavailable);
  }
}

// A job may end while the connections to its neighbours are being set up. UCX 1.13 aborts the process where
// its answer to the neighbour's request still waits for the socket when the endpoint is closed.
TEST(UcxDisconnect, IsSafeAtEveryMomentOfAConnectionsSetup) {
  const auto descriptors = open_descriptors();
  for (int step = 0; step < 60; ++step) {
    Local one;
    Local other;
    const auto there = one.transport->connect(other.transport->address()).value();
    const auto back = other.transport->connect(one.transport->address()).value();
    const auto payload = pattern(one.transport->max_payload(), 9);
    one.transport->send(there, bytes_of("x"), payload, &one.sends);
    other.transport->send(back, bytes_of("x"), payload, &other.sends);
    for (int i = 0; i < step; ++i) {
      (i % 3 == 0 ? one : other).transport->poll();
    }
    one.transport->disconnect(there);
    for (int i = 0; i < 50; ++i) {
      one.transport->poll();
      other.transport->poll();
    }
    other.transport->disconnect(back);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

// What UCX keeps of a connection (one direction, until the other side lets go of it) may not grow.
TEST(UcxDisconnect, LeavesNoMoreSocketsOpenThanTheFirst) {
  Local one;
  Local other;
  const auto poll_both = [&] {
    for (int i = 0; i < 2000; ++i) {
      one.transport->poll();
      other.transport->poll();
    }
    return open_descriptors();
  };
  uint64_t rounds = 0;
  const auto round = [&] {
    ++rounds;
    const auto there = one.transport->connect(other.transport->address()).value();
    const auto back = other.transport->connect(one.transport->address()).value();
    one.transport->send(there, bytes_of("x"), {}, &one.sends);
    other.transport->send(back, bytes_of("x"), {}, &other.sends);
    EXPECT_TRUE(one.until([&] {
      other.transport->poll();
      return one.sends.total == rounds && other.sends.total == rounds;
    }));
    one.transport->disconnect(there);
    other.transport->disconnect(back);
    return poll_both();
  };
  const auto descriptors = round();
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(round(), descriptors);
  }
}

// Both processes sleep whenever they have nothing to do; a wake-up that got lost would run into the time-out.
TEST(UcxSleep, NoWakeUpIsLost) {
  Local local;
  Remote remote("echo", 0, local);
  const auto peer = local.transport->connect(remote.address).value();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, local.transport->event_fd(), &event), 0);
  int timeouts = 0;
  for (uint64_t i = 0; i < 3'000; ++i) {
    const auto payload = pattern(i % 3 == 0 ? 0 : (i * 37) % 20'000, static_cast<uint32_t>(i));
    local.transport->send(peer, bytes_of_value(i), payload, &local.sends);
    while (local.recorder.messages <= i && timeouts < 3) {
      if (local.transport->poll() == 0 && local.transport->arm()) {
        timeouts += ::epoll_wait(epoll, &event, 1, 10'000) == 0;
      }
    }
    ASSERT_EQ(timeouts, 0) << "at message " << i;
    ASSERT_EQ(local.recorder.seen.back().payload, payload);
  }
  ::close(epoll);
}

TEST(UcxOptionsTest, UnusableOptionsAreRefusedWithASentence) {
  UcxOptions options = loopback_options();
  options.segment_bytes = 100;
  EXPECT_EQ(make_ucx_transport(options).status().code(), Code::kInvalidArgument);
  options = loopback_options();
  options.net_devices = "nosuchdevice0";
  options.tls = "tcp";
  const auto status = make_ucx_transport(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("nosuchdevice0"), std::string::npos) << status.message();
}

TEST(UcxOptionsTest, DifferentSegmentSizesDoNotConnect) {
  Local local;
  UcxOptions options = loopback_options();
  options.segment_bytes = 64 * 1024;
  const auto other = make_ucx_transport(options).value();
  EXPECT_EQ(other->max_payload(), 64'512u);
  EXPECT_EQ(other->connect(local.transport->address()).status().code(), Code::kMismatch);
}

TEST(UcxProcess, NeitherSignalsNorDescriptorsStayTaken) {
  { const auto first = make(); }
  const ptrdiff_t before = open_descriptors();
  for (int i = 0; i < 10; ++i) {
    Local a, b;
    b.transport->send(b.transport->connect(a.transport->address()).value(), bytes_of("x"), {}, &b.sends);
    const auto fabric = make_ucx_fabric();
    ASSERT_TRUE(
        drive(*fabric, {a.transport.get(), b.transport.get()}, [&] { return a.recorder.messages == 1; }));
    EXPECT_EQ(b.transport->name(), "tcp");
  }
  EXPECT_EQ(open_descriptors(), before);
#ifndef GRADWIRE_SANITIZED
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << number;
  }
#endif
}

// A program that speaks UCX, but not Gradwire.
class Foreigner {
 public:
  explicit Foreigner(const std::string& address) {
    ucp_config_t* config = nullptr;
    ucp_config_read(nullptr, nullptr, &config);
    ucp_config_modify(config, "TLS", "tcp");
    ucp_config_modify(config, "NET_DEVICES", "lo");
    ucp_params_t context{};
    context.field_mask = UCP_PARAM_FIELD_FEATURES;
    context.features = UCP_FEATURE_AM;
    ucp_init(&context, config, &context_);
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    ucp_worker_create(context_, &worker, &worker_);
    const std::string body = address.substr(16);  // behind our frame
    ucp_ep_params_t endpoint{};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    endpoint.address = reinterpret_cast<const ucp_address_t*>(body.data());
    endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucp_ep_create(worker_, &endpoint, &endpoint_);
  }
  ~Foreigner() {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* request = ucp_ep_close_nbx(endpoint_, &parameters);
    for (int i = 0; i < 100'000 && UCS_PTR_IS_PTR(request); ++i) {
      ucp_worker_progress(worker_);
      if (ucp_request_check_status(request) != UCS_INPROGRESS) {
        ucp_request_free(request);
        request = nullptr;
      }
    }
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  void send(size_t header, size_t payload, uint32_t flags) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = flags;
    void* request =
        ucp_am_send_nbx(endpoint_, 1, header_.data(), header, payload_.data(), payload, &parameters);
    if (UCS_PTR_IS_PTR(request)) {
      ucp_request_free(request);
    }
  }
  void progress() { ucp_worker_progress(worker_); }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<std::byte> header_ = pattern(1'000, 1), payload_ = pattern(300'000, 2);
};

TEST(UcxForeigners, MessagesThatNoGradwireTransportSendsAreRefused) {
  Local local;
  Foreigner foreigner(local.transport->address());
  foreigner.send(200, 10, UCP_AM_SEND_FLAG_EAGER);
  foreigner.send(129, 0, UCP_AM_SEND_FLAG_EAGER);
  foreigner.send(16, 300'000, UCP_AM_SEND_FLAG_RNDV);
  foreigner.send(128, 20, UCP_AM_SEND_FLAG_EAGER);
  ASSERT_TRUE(local.until([&] {
    foreigner.progress();
    return local.recorder.messages == 1;
  }));
  EXPECT_EQ(local.recorder.seen[0].header.size(), 128u);
  EXPECT_EQ(local.recorder.seen[0].payload.size(), 20u);
  EXPECT_EQ(local.transport->counters().messages_received, 1u);
}

}  // namespace
}  // namespace gradwire::transport::testing
