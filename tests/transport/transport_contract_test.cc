// What transport.h promises, checked on every implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/transport/transport_harness.h"

namespace gradwire::transport::testing {
namespace {

struct Side {
  explicit Side(Fabric& fabric, std::string_view name) : transport(fabric.create(name)) {
    transport->set_receiver(&recorder);
  }
  PeerId connect(const Side& other) { return transport->connect(other.transport->address()).value(); }
  Recorder recorder;
  Completions sends;
  std::unique_ptr<Transport> transport;
};

struct Kind {
  const char* name;
  std::unique_ptr<Fabric> (*make)();
};

class TransportContract : public ::testing::TestWithParam<Kind> {
 protected:
  bool drive_until(const std::function<bool()>& done) {
    return drive(*fabric, {a.transport.get(), b.transport.get()}, done);
  }
  std::unique_ptr<Fabric> fabric = GetParam().make();
  Side a{*fabric, "a"}, b{*fabric, "b"};
};

TEST_P(TransportContract, MessagesArriveInOrderAndComplete) {
  const auto peer = a.connect(b);
  constexpr uint64_t kCount = 2'000;
  std::vector<std::vector<std::byte>> payloads;
  for (uint64_t i = 0; i < kCount; ++i) {
    payloads.push_back(pattern((i * 7919) % 3'000, static_cast<uint32_t>(i)));
    a.transport->send(peer, bytes_of_value(i), payloads.back(), &a.sends);
  }
  ASSERT_TRUE(drive_until([&] { return b.recorder.messages == kCount && a.sends.total == kCount; }));
  EXPECT_EQ(a.sends.ok, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(load<uint64_t>(b.recorder.seen[i].header), i);
    EXPECT_EQ(b.recorder.seen[i].payload, payloads[i]);
  }
}

TEST_P(TransportContract, EverySizeFromNothingToTheLimitArrives) {
  const auto peer = a.connect(b);
  const size_t limit = a.transport->max_payload();
  std::vector<std::vector<std::byte>> headers, payloads;
  for (const size_t header : {0, 1, 7, 16, 127, 128}) {
    for (const size_t payload : {size_t{0}, size_t{1}, size_t{3}, size_t{64}, size_t{4'096}, size_t{8'139},
                                 size_t{8'200}, size_t{65'536}, limit - 1, limit}) {
      headers.push_back(pattern(header, 1));
      payloads.push_back(pattern(payload, 2));
    }
  }
  for (size_t i = 0; i < headers.size(); ++i) {
    a.transport->send(peer, headers[i], payloads[i], &a.sends);
  }
  ASSERT_TRUE(
      drive_until([&] { return b.recorder.messages == headers.size() && a.sends.total == headers.size(); }));
  EXPECT_EQ(a.sends.ok, headers.size());
  for (size_t i = 0; i < headers.size(); ++i) {
    EXPECT_EQ(b.recorder.seen[i].header, headers[i]);
    EXPECT_EQ(b.recorder.seen[i].payload, payloads[i]);
  }
}

TEST_P(TransportContract, LargerThanTheLimitIsRefusedThroughTheCompletion) {
  const auto peer = a.connect(b);
  a.transport->send(peer, {}, pattern(a.transport->max_payload() + 1, 1), &a.sends);
  a.transport->send(peer, pattern(kMaxHeaderBytes + 1, 1), {}, &a.sends);
  EXPECT_EQ(a.sends.total, 2u);
  EXPECT_EQ(a.sends.last.code(), Code::kInvalidArgument);
}

TEST_P(TransportContract, PayloadIsReadInPlaceWithoutAlignment) {
  const auto peer = a.connect(b);
  bool unaligned = false;
  std::vector<uint32_t> numbers(4'096);
  for (uint32_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i * 3;
  }
  uint64_t sum = 0;
  b.recorder.then = [&](auto, std::span<const std::byte> payload) {
    unaligned |= reinterpret_cast<uintptr_t>(payload.data()) % 4 != 0;
    for (size_t at = 0; at + 4 <= payload.size(); at += 4) {
      sum += load<uint32_t>(payload.subspan(at));
    }
  };
  a.transport->send(peer, bytes_of("h"), std::as_bytes(std::span(numbers)), &a.sends);
  ASSERT_TRUE(drive_until([&] { return b.recorder.messages == 1; }));
  EXPECT_TRUE(unaligned);
  EXPECT_EQ(sum, uint64_t{3} * 4'095 * 4'096 / 2);
}

// Each side keeps its window full, and sends from inside the completions and arrivals.
TEST_P(TransportContract, FloodsInBothDirectionsKeepTheirOrder) {
  constexpr uint64_t kCount = 600;
  struct Flood {
    explicit Flood(Side& from) : side(from) {}
    void pump() {
      while (next < kCount && side.sends.total + window > next) {
        const uint64_t number = next++;
        side.transport->send(peer, bytes_of_value(number), payload, &side.sends);
      }
    }
    Side& side;
    PeerId peer = 0;
    uint64_t next = 0, window = 0, expected = 0, wrong = 0;
    std::vector<std::byte> payload;
  };
  Flood floods[2] = {Flood(a), Flood(b)};
  for (auto& flood : floods) {
    flood.window = flood.side.transport->send_window();
    flood.payload = pattern(flood.side.transport->max_payload(), 3);
    flood.side.recorder.keep = false;
    flood.side.sends.then = [&flood] { flood.pump(); };
    flood.side.recorder.then = [&flood](auto header, auto payload) {
      flood.wrong += load<uint64_t>(header) != flood.expected++;
      flood.wrong += !std::equal(payload.begin(), payload.end(), flood.payload.begin(), flood.payload.end());
      flood.pump();
    };
  }
  floods[0].peer = a.connect(b);
  floods[1].peer = b.connect(a);
  floods[0].pump();
  floods[1].pump();
  ASSERT_TRUE(drive_until([&] {
    return std::all_of(std::begin(floods), std::end(floods), [](const Flood& flood) {
      return flood.side.recorder.messages == kCount && flood.side.sends.total == kCount;
    });
  }));
  for (const auto& flood : floods) {
    EXPECT_EQ(flood.wrong, 0u);
    EXPECT_EQ(flood.side.sends.ok, kCount);
  }
  const auto sent = a.transport->counters();
  const auto received = b.transport->counters();
  EXPECT_EQ(sent.messages_sent, kCount);
  EXPECT_EQ(sent.bytes_sent, kCount * (8 + floods[0].payload.size()));
  EXPECT_EQ(received.messages_received, sent.messages_sent);
  EXPECT_EQ(received.bytes_received, sent.bytes_sent);
}

TEST_P(TransportContract, DisconnectEndsEverySendExactlyOnce) {
  const auto payload = pattern(a.transport->max_payload(), 4);
  b.recorder.keep = false;
  for (int round = 0; round < 8; ++round) {
    Completions sends;
    const auto peer = a.connect(b);
    for (int i = 0; i < 400; ++i) {
      a.transport->send(peer, bytes_of("x"), payload, &sends);
    }
    for (int i = 0; i < round * 20; ++i) {
      a.transport->poll();
      b.transport->poll();
      fabric->turn();
    }
    a.transport->disconnect(peer);
    EXPECT_EQ(sends.total, 400u);
    EXPECT_EQ(sends.ok + sends.aborted, 400u);
    for (int i = 0; i < 1'000; ++i) {
      a.transport->poll();
      b.transport->poll();
    }
    EXPECT_EQ(sends.total, 400u);
    a.transport->send(peer, bytes_of("x"), {}, &sends);
    EXPECT_EQ(sends.unavailable, 1u);
    a.transport->disconnect(peer);  // of what is not there: nothing happens
  }
  // The connections that were closed leave the transport usable.
  const auto before = b.recorder.messages;
  b.recorder.then = [&](auto header, auto) { b.sends.total += header.size() == 4; };
  a.transport->send(a.connect(b), bytes_of("last"), {}, &a.sends);
  EXPECT_TRUE(drive_until([&] { return b.sends.total == 1; }));
  EXPECT_GT(b.recorder.messages, before);
}

TEST_P(TransportContract, DisconnectFromInsideAnArrivalIsSafe) {
  const auto payload = pattern(a.transport->max_payload(), 4);
  a.recorder.keep = b.recorder.keep = false;
  for (int round = 0; round < 10; ++round) {
    Completions sends;
    const auto to_b = a.connect(b);
    const auto to_a = b.connect(a);
    for (int i = 0; i < 300; ++i) {
      a.transport->send(to_b, bytes_of("x"), payload, &sends);
      b.transport->send(to_a, bytes_of("y"), payload, &b.sends);
    }
    bool closed = false;
    uint64_t at_close = 0;
    a.recorder.then = [&](auto, auto) {
      if (!closed) {
        closed = true;
        a.transport->disconnect(to_b);
        at_close = sends.total;
      }
    };
    ASSERT_TRUE(drive_until([&] { return closed; }));
    EXPECT_EQ(at_close, 300u);
    b.transport->disconnect(to_a);
    a.recorder.then = nullptr;
    for (int i = 0; i < 2'000; ++i) {
      a.transport->poll();
      b.transport->poll();
      fabric->turn();
    }
    EXPECT_EQ(sends.total, 300u);
  }
  EXPECT_EQ(b.sends.total, 3'000u);
}

TEST_P(TransportContract, SendsMayFollowFromCompletionsOfADisconnect) {
  Side c(*fabric, "c");
  const auto to_b = a.connect(b);
  const auto to_c = a.connect(c);
  const auto payload = pattern(a.transport->max_payload(), 4);
  Completions onward;
  a.sends.then = [&] { a.transport->send(to_c, bytes_of("n"), {}, &onward); };
  for (int i = 0; i < 50; ++i) {
    a.transport->send(to_b, bytes_of("x"), payload, &a.sends);
  }
  a.transport->disconnect(to_b);
  ASSERT_TRUE(drive(*fabric, {a.transport.get(), b.transport.get(), c.transport.get()},
                    [&] { return c.recorder.messages == 50 && onward.ok == 50; }));
}

TEST_P(TransportContract, DamagedAddressIsRefused) {
  const std::string good = b.transport->address();
  EXPECT_FALSE(a.transport->connect("").ok());
  EXPECT_FALSE(a.transport->connect("garbage").ok());
  EXPECT_FALSE(a.transport->connect(std::string(5'000, '\xff')).ok());
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(a.transport->connect(std::string_view(good).substr(0, i)).ok()) << i;
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x15);
    EXPECT_FALSE(a.transport->connect(bad).ok()) << i;
  }
  a.transport->send(a.connect(b), bytes_of("x"), {}, &a.sends);
  EXPECT_TRUE(drive_until([&] { return b.recorder.messages == 1; }));
}

TEST_P(TransportContract, PeerThatIsDestroyedBecomesAnErrorAndTheOthersGoOn) {
  auto c = std::make_unique<Side>(*fabric, "c");
  const auto to_b = a.connect(b);
  const auto to_c = a.connect(*c);
  const auto payload = pattern(a.transport->max_payload(), 5);
  a.transport->send(to_c, bytes_of("x"), payload, &a.sends);
  ASSERT_TRUE(
      drive(*fabric, {a.transport.get(), c->transport.get()}, [&] { return c->recorder.messages == 1; }));
  ASSERT_TRUE(drive_until([&] { return a.sends.ok == 1; }));
  c.reset();
  Completions lost;
  uint64_t started = 0;
  ASSERT_TRUE(drive_until([&] {
    if (a.recorder.errors.empty() && started < lost.total + 4) {
      ++started;
      a.transport->send(to_c, bytes_of("x"), payload, &lost);
    }
    return !a.recorder.errors.empty();
  }));
  EXPECT_EQ(a.recorder.errors, std::vector<PeerId>{to_c});
  EXPECT_EQ(a.recorder.error.code(), Code::kUnavailable);
  Completions after;
  a.transport->send(to_c, bytes_of("x"), {}, &after);
  EXPECT_EQ(after.unavailable, 1u);
  a.transport->disconnect(to_c);
  EXPECT_EQ(lost.total, started);
  a.transport->send(to_b, bytes_of("x"), payload, &a.sends);
  EXPECT_TRUE(drive_until([&] { return b.recorder.messages == 1; }));
}

TEST_P(TransportContract, SteadyStateAllocatesNothing) {
  const auto to_b = a.connect(b);
  const auto to_a = b.connect(a);
  const auto payload = pattern(a.transport->max_payload(), 8);
  a.recorder.keep = b.recorder.keep = false;
  b.recorder.then = [&](auto header, auto) { b.transport->send(to_a, header, payload, &b.sends); };
  const auto exchange = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t expected = a.recorder.messages + 4;
      for (int message = 0; message < 4; ++message) {
        a.transport->send(to_b, bytes_of_value(i), payload, &a.sends);
      }
      while (a.recorder.messages < expected) {
        if (a.transport->poll() + b.transport->poll() == 0) {
          fabric->turn();
        }
      }
    }
  };
  exchange(600);
  const uint64_t before = allocations();
  exchange(200);
  EXPECT_EQ(allocations(), before);
}

TEST_P(TransportContract, DestructionAbortsWhatIsInFlight) {
  const auto payload = pattern(a.transport->max_payload(), 6);
  const auto peer = a.connect(b);
  for (int i = 0; i < 100; ++i) {
    a.transport->send(peer, bytes_of("x"), payload, &a.sends);
  }
  a.transport.reset();
  EXPECT_EQ(a.sends.total, 100u);
}

TEST_P(TransportContract, MessagesToOneselfArriveInPollOnly) {
  const auto peer = a.connect(a);
  bool inside_send = false, wrong = false;
  const auto send = [&](uint64_t number) {
    inside_send = true;
    a.transport->send(peer, bytes_of_value(number), {}, &a.sends);
    inside_send = false;
  };
  uint64_t expected = 0;
  a.recorder.then = [&](auto header, auto) {
    wrong |= inside_send || load<uint64_t>(header) != expected++;
    if (expected < 20) {
      send(expected + 19);
    }
  };
  for (uint64_t i = 0; i < 20; ++i) {
    send(i);
  }
  ASSERT_TRUE(drive_until([&] { return a.recorder.messages == 39; }));
  EXPECT_FALSE(wrong);
}

INSTANTIATE_TEST_SUITE_P(Implementations, TransportContract,
                         ::testing::Values(Kind{"sim1", [] { return make_sim_fabric(1); }},
                                           Kind{"sim2", [] { return make_sim_fabric(2); }},
                                           Kind{"ucx", make_ucx_fabric}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace gradwire::transport::testing
