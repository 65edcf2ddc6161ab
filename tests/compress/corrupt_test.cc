// Messages that are not what a sender wrote: refused or harmless, never read or written out of bounds.
#include <algorithm>
#include <bit>

#include "compress/bytes.h"
#include "tests/compress/every_block.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

struct Message {
  Segment segment;
  std::vector<std::byte> bytes;
};

// Finished segments of a few steps, with every layout among them.
std::vector<Message> valid_messages() {
  std::vector<Message> messages;
  for (const bool warm : {false, true}) {
    const BucketShape shape = fuzz_shape();
    LoopbackRing ring = compressed_ring(shape, fuzz_settings(warm));
    ring.observe([&](const Segment& segment, std::span<const std::byte> bytes) {
      messages.push_back({segment, {bytes.begin(), bytes.end()}});
    });
    RingBuffers buffers(shape, 1);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int step = 0; step < (warm ? 1 : 4); ++step) {
      buffers.fill([&] { return random() % 10 < (step < 2 ? 10U : 3U) ? 3 + normal(random) : 0.0F; });
      EXPECT_TRUE(*ring.run(operation(ReduceOp::kAverage, 2), buffers.locals(), buffers.result_starts()));
    }
  }
  return messages;
}

void mutate(std::vector<std::byte>& bytes, std::mt19937& random) {
  const auto any = [&] { return static_cast<std::byte>(random() & 0xff); };
  switch (random() % 6) {
    case 0:
      bytes[random() % bytes.size()] = any();
      break;
    case 1:
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
      break;
    case 2:
      bytes.resize(random() % bytes.size());
      break;
    case 3:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()), any());
      break;
    case 4:
      std::generate(bytes.begin(), bytes.end(), any);
      break;
    default:
      for (size_t i = 0; i < std::min<size_t>(bytes.size(), 8); ++i) {
        bytes[i] = any();
      }
  }
}

TEST(CorruptMessage, TruncatedAndExtendedOnesAreRefused) {
  for (const Message& message : valid_messages()) {
    const auto verdict = fuzz_message(message.segment.chunk, message.segment.index, message.bytes);
    ASSERT_EQ(verdict.decode, Code::kOk);
    ASSERT_EQ(verdict.hop, Code::kOk);
    for (size_t size = 0; size < message.bytes.size(); size += 1 + size / 16) {
      const std::vector<std::byte> part(message.bytes.begin(),
                                        message.bytes.begin() + static_cast<std::ptrdiff_t>(size));
      const auto refused = fuzz_message(message.segment.chunk, message.segment.index, part);
      ASSERT_EQ(refused.decode, Code::kCorrupt) << size;
      ASSERT_TRUE(size == 0 || refused.hop == Code::kCorrupt) << size;
    }
    auto longer = message.bytes;
    longer.push_back(std::byte{0});
    ASSERT_EQ(fuzz_message(message.segment.chunk, message.segment.index, longer).decode, Code::kCorrupt);
  }
}

TEST(CorruptMessage, AHundredThousandMutationsAreHarmless) {
  const std::vector<Message> messages = valid_messages();
  std::mt19937 random(2);
  int refused = 0;
  constexpr int kCases = 100000;
  for (int i = 0; i < kCases; ++i) {
    const Message& message = messages[random() % messages.size()];
    auto bytes = message.bytes;
    for (uint32_t rounds = 1 + random() % 3; rounds > 0 && !bytes.empty(); --rounds) {
      mutate(bytes, random);
    }
    const auto verdict = fuzz_message(message.segment.chunk, message.segment.index, bytes);
    ASSERT_TRUE(verdict.decode == Code::kOk || verdict.decode == Code::kCorrupt);
    ASSERT_TRUE(bytes.empty() || verdict.decode == verdict.hop);
    refused += verdict.decode == Code::kCorrupt ? 1 : 0;
  }
  EXPECT_GT(refused, kCases / 4);
}

TEST(SignVotes, OfMoreNodesThanThereAreAreRefused) {
  for (const uint32_t nodes : {2U, 5U}) {
    const BucketShape shape = shape_of({uint64_t{64} * nodes}, nodes);
    LoopbackRing ring = compressed_ring(shape, codec("sign"));
    BucketReducer& node = ring.node(1);
    const std::vector<float> gradient(size_t{64} * nodes, 1.0F);
    const std::vector<const void*> locals = {gradient.data()};
    const Segment& segment = node.geometry().segments(0)[0];
    std::vector<std::byte> out(segment.max_bytes);
    for (uint32_t voters = 1; voters <= nodes; ++voters) {
      const auto bits = static_cast<uint32_t>(std::bit_width(voters));
      std::vector<std::byte> block(5 + 64 * bits / 8);
      block[0] = static_cast<std::byte>(voters);
      store(block.data() + 1, 1.0F);
      ASSERT_TRUE(node.begin(operation(ReduceOp::kSum, nodes)).ok());
      EXPECT_EQ(node.hop(segment, block, locals, out.data()).status().code(),
                voters < nodes ? Code::kOk : Code::kCorrupt)
          << voters << " of " << nodes;
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
