// What SimNetwork promises beyond the Transport contract: virtual time, faults, determinism.
#include "transport/sim/sim_network.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/transport/transport_harness.h"

namespace gradwire::transport {
namespace {

using testing::bytes_of;
using testing::bytes_of_value;
using testing::Completions;
using testing::load;
using testing::pattern;
using testing::Recorder;

struct Side {
  Side(SimNetwork& network, std::string_view name) : transport(network.create_node(name)) {
    transport->set_receiver(&recorder);
  }
  PeerId connect(const Side& other) { return transport->connect(other.transport->address()).value(); }
  Recorder recorder;
  Completions sends;
  std::unique_ptr<Transport> transport;
};

void run(SimNetwork& network, std::initializer_list<Side*> sides) {
  for (bool more = true; more;) {
    size_t events = 0;
    for (Side* side : sides) {
      events += side->transport->poll();
    }
    more = events > 0 || network.step();
  }
}

std::string numbered(size_t number) {
  std::string name = "n";
  name += std::to_string(number);
  return name;
}

SimOptions plain() {
  return {.seed = 7, .latency_ns = 1'000, .inline_completions = 0, .late_completions = 0};
}

TEST(SimNetworkTime, MessageArrivesAfterTransmissionAndLatency) {
  auto options = plain();
  options.bytes_per_second = 1'000'000'000;  // 1 byte/ns
  SimNetwork network(options);
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  const auto payload = pattern(400, 1);
  uint64_t sent_at = 0, arrived_at = 0;
  a.sends.then = [&] { sent_at = network.now_ns(); };
  b.recorder.then = [&](auto, auto) { arrived_at = network.now_ns(); };
  a.transport->send(peer, pattern(100, 2), payload, &a.sends);
  run(network, {&a, &b});
  EXPECT_EQ(sent_at, 500u);
  EXPECT_EQ(arrived_at, 1'500u);
}

TEST(SimNetworkTime, LinkOfLimitedBandwidthCarriesOneMessageAfterAnother) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  network.set_link("a", "b", 50, 2'000'000'000);
  const auto payload = pattern(1'000, 1);
  for (int i = 0; i < 10; ++i) {
    a.transport->send(peer, {}, payload, &a.sends);
  }
  run(network, {&a, &b});
  EXPECT_EQ(network.now_ns(), 10 * 500u + 50u);
  EXPECT_EQ(b.recorder.messages, 10u);
}

TEST(SimNetworkTime, NothingIsDeliveredBeforeItsTime) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  a.transport->send(a.connect(b), bytes_of("x"), {}, &a.sends);
  EXPECT_TRUE(network.advance_to(999));  // the departure
  b.transport->poll();
  EXPECT_EQ(b.recorder.messages, 0u);
  EXPECT_EQ(network.next_event_ns(), 1'000u);
  EXPECT_TRUE(network.advance_to(5'000));
  EXPECT_EQ(network.now_ns(), 5'000u);
  b.transport->poll();
  EXPECT_EQ(b.recorder.messages, 1u);
  EXPECT_FALSE(network.step());
}

uint64_t run_random_traffic(uint64_t seed) {
  SimNetwork network({.seed = seed, .jitter_ns = 50'000, .bytes_per_second = 100'000'000});
  std::vector<std::unique_ptr<Side>> sides;
  for (size_t i = 0; i < 6; ++i) {
    sides.push_back(std::make_unique<Side>(network, numbered(i)));
    sides.back()->recorder.keep = false;
  }
  const auto payload = pattern(3'000, 5);
  std::vector<std::vector<PeerId>> peers(6);
  for (size_t i = 0; i < 6; ++i) {
    for (size_t j = 0; j < 6; ++j) {
      peers[i].push_back(i == j ? 0 : sides[i]->connect(*sides[j]));
    }
  }
  for (uint64_t round = 0; round < 200; ++round) {
    for (size_t i = 0; i < 6; ++i) {
      const size_t to = (i + 1 + round % 5) % 6;
      sides[i]->transport->send(peers[i][to], bytes_of_value(round), payload, &sides[i]->sends);
      sides[i]->transport->poll();
    }
    network.step();
  }
  while (network.step()) {
    for (auto& side : sides) {
      side->transport->poll();
    }
  }
  EXPECT_EQ(network.deliveries(), 1'200u);
  return network.fingerprint();
}

TEST(SimNetworkDeterminism, EqualSeedsGiveEqualRunsAndOthersDiffer) {
  EXPECT_EQ(run_random_traffic(3), run_random_traffic(3));
  EXPECT_NE(run_random_traffic(3), run_random_traffic(4));
}

TEST(SimNetworkFaults, SendersLearnOfADeathAfterTheDelay) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b"), c(network, "c");
  const auto to_b = a.connect(b);
  const auto to_c = a.connect(c);
  a.transport->send(to_b, bytes_of("lost"), {}, &a.sends);
  network.kill("b");
  a.transport->send(to_c, bytes_of("kept"), {}, &a.sends);
  run(network, {&a, &b, &c});
  EXPECT_EQ(a.recorder.errors, std::vector<PeerId>{to_b});
  EXPECT_EQ(a.recorder.error.code(), Code::kUnavailable);
  EXPECT_EQ(network.now_ns(), 1'000'000u);
  EXPECT_EQ(a.sends.unavailable, 1u);
  EXPECT_EQ(a.sends.ok, 1u);
  EXPECT_EQ(c.recorder.messages, 1u);
  a.transport->send(to_b, bytes_of("late"), {}, &a.sends);
  EXPECT_EQ(a.sends.unavailable, 2u);
  a.transport->disconnect(to_b);
  EXPECT_EQ(a.transport->connect(b.transport->address()).status().code(), Code::kUnavailable);
}

TEST(SimNetworkFaults, IdlePeerLearnsOfADeathWhenItSends) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  network.kill("b");
  run(network, {&a});
  EXPECT_TRUE(a.recorder.errors.empty());
  a.transport->send(peer, bytes_of("x"), {}, &a.sends);
  run(network, {&a});
  EXPECT_EQ(a.recorder.errors.size(), 1u);
  EXPECT_EQ(a.sends.unavailable, 1u);
}

TEST(SimNetworkFaults, KilledNodeIsSilentAndItsSendsEndWithIt) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  a.transport->send(a.connect(b), bytes_of("x"), {}, &a.sends);
  network.kill("a");
  run(network, {&a, &b});
  EXPECT_EQ(b.recorder.messages, 0u);
  EXPECT_EQ(a.sends.total, 0u);
  a.transport.reset();
  EXPECT_EQ(a.sends.aborted, 1u);
}

TEST(SimNetworkFaults, RestartedNodeHasAnotherAddress) {
  SimNetwork network(plain());
  Side a(network, "a"), old(network, "b");
  Side fresh(network, "b");
  EXPECT_FALSE(a.transport->connect(old.transport->address()).ok());
  a.transport->send(a.connect(fresh), bytes_of("x"), {}, &a.sends);
  run(network, {&a, &fresh});
  EXPECT_EQ(fresh.recorder.messages, 1u);
}

TEST(SimNetworkFaults, CutHoldsMessagesUntilItIsHealed) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  a.transport->send(peer, bytes_of("0"), {}, &a.sends);
  network.step();  // "0" has left, and is under way when the link breaks
  network.cut("a", "b");
  for (const char* text : {"1", "2", "3"}) {
    a.transport->send(peer, bytes_of(text), {}, &a.sends);
  }
  network.advance_to(1'000'000'000);
  run(network, {&a, &b});
  EXPECT_EQ(b.recorder.messages, 0u);
  EXPECT_EQ(a.sends.ok, 1u);
  network.heal("b", "a");
  run(network, {&a, &b});
  ASSERT_EQ(b.recorder.seen.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(static_cast<char>(b.recorder.seen[i].header[0]), static_cast<char>('0' + i));
  }
  EXPECT_EQ(a.sends.ok, 4u);
  EXPECT_EQ(network.now_ns(), 1'000'001'000u);
}

TEST(SimNetworkFaults, DisconnectAcrossACutAbortsWhatWaits) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  network.cut("a", "b");
  a.transport->send(peer, bytes_of("old"), {}, &a.sends);
  a.transport->disconnect(peer);
  EXPECT_EQ(a.sends.aborted, 1u);
  a.transport->send(a.connect(b), bytes_of("next"), {}, &a.sends);
  network.heal("a", "b");
  run(network, {&a, &b});
  ASSERT_EQ(b.recorder.seen.size(), 1u);
  EXPECT_EQ(b.recorder.seen[0].header.size(), 4u);
}

TEST(SimNetworkFaults, ResetFailsBothEndsWithoutADeath) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto to_b = a.connect(b);
  b.connect(a);
  a.transport->send(to_b, bytes_of("lost"), {}, &a.sends);
  network.step();
  network.reset("a", "b");
  run(network, {&a, &b});
  EXPECT_EQ(a.recorder.errors.size(), 1u);
  EXPECT_EQ(b.recorder.errors.size(), 1u);
  EXPECT_EQ(b.recorder.messages, 0u);
  a.transport->disconnect(to_b);
  a.transport->send(a.connect(b), bytes_of("again"), {}, &a.sends);
  run(network, {&a, &b});
  EXPECT_EQ(b.recorder.messages, 1u);
}

TEST(SimNetworkFilter, DropsMutatesDuplicatesAndInjects) {
  SimNetwork network(plain());
  Side a(network, "a"), b(network, "b");
  const auto peer = a.connect(b);
  network.set_filter([](SimMessage& message) {
    EXPECT_EQ(message.from, "a");
    EXPECT_EQ(message.to, "b");
    switch (static_cast<char>(message.header[0])) {
      case 'd':
        return 0;
      case 't':
        return 2;
      case 'm':
        message.payload.assign(3, std::byte{9});
        return 1;
      case 'h':
        message.header.resize(kMaxHeaderBytes + 1);  // refused on arrival
        return 1;
      default:
        return 1;
    }
  });
  for (const char* text : {"d", "t", "m", "h", "p"}) {
    a.transport->send(peer, bytes_of(text), {}, &a.sends);
  }
  network.inject("a", "b", bytes_of("i"), pattern(200'000, 1));
  run(network, {&a, &b});
  std::string order;
  for (const auto& seen : b.recorder.seen) {
    order += static_cast<char>(seen.header[0]);
  }
  EXPECT_EQ(order, "ittmp");
  EXPECT_EQ(b.recorder.seen[0].payload, pattern(200'000, 1));
  EXPECT_EQ(b.recorder.seen[3].payload.size(), 3u);
  EXPECT_EQ(a.sends.ok, 5u);
}

TEST(SimNetworkScale, HundredsOfNodesExchangeManyMessages) {
  constexpr size_t kNodes = 300;
  constexpr uint64_t kMessages = 300;  // of each node around the ring
  SimNetwork network({.seed = 11, .jitter_ns = 10'000});
  std::vector<std::unique_ptr<Side>> sides;
  for (size_t i = 0; i < kNodes; ++i) {
    sides.push_back(std::make_unique<Side>(network, numbered(i)));
    sides.back()->recorder.keep = false;
  }
  for (size_t i = 0; i < kNodes; ++i) {
    const PeerId peer = sides[i]->connect(*sides[(i + 1) % kNodes]);
    for (uint64_t n = 0; n < kMessages; ++n) {
      sides[i]->transport->send(peer, bytes_of("header"), {}, &sides[i]->sends);
    }
  }
  while (network.step()) {
  }
  for (auto& side : sides) {
    side->transport->poll();
    EXPECT_EQ(side->recorder.messages, kMessages);
    EXPECT_EQ(side->sends.ok, kMessages);
  }
}

}  // namespace
}  // namespace gradwire::transport
