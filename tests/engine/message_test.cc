#include "daemon/engine/message.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "client/layout/session_layout.h"

namespace gradwire::engine {
namespace {

MessageHeader sample() {
  MessageHeader header{};
  for (size_t i = 0; i < header.key.size(); ++i) {
    header.key[i] = static_cast<std::byte>(i + 1);
  }
  header.magic = kMessageMagic;
  header.kind = static_cast<uint8_t>(MessageKind::kReduce);
  header.operation = layout::kOpAllreduce;
  header.reduce_op = 1;
  header.dtype = 0;
  header.sequence = 0x1122334455667788;
  header.scale_bits = std::bit_cast<uint64_t>(2.0);
  header.elements = 1000;
  header.layout = 0xa1a2a3a4a5a6a7a8;
  header.bucket = 7;
  header.root = 0;
  header.from_node = 3;
  header.hop = 2;
  header.chunk = 5;
  header.segment = 9;
  header.payload_bytes = 64;
  header.flags = kMessageNotFinite;
  header.checksum = message_checksum(header);
  return header;
}

std::string_view parse(MessageHeader header, size_t payload = 64) {
  header.checksum = message_checksum(header);
  MessageHeader out;
  return parse_message(bytes_of(header), payload, &out);
}

TEST(Message, LiesInMemoryAsTheWireFormatSays) {
  const MessageHeader header = sample();
  const uint8_t expected[88] = {
      1,    2,    3,    4,    5,    6,    7,    8,    9, 10, 11, 12, 13, 14, 15, 16,  // key
      'G',  'W',  'D',  '1',  1,    1,    1,    0,                                    // kinds
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,                                 // sequence
      0,    0,    0,    0,    0,    0,    0,    0x40,                                 // scale
      0xe8, 3,    0,    0,    0,    0,    0,    0,                                    // elements
      0xa8, 0xa7, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1,                                 // layout
      7,    0,    0,    0,    0,    0,    0,    0,                                    // bucket, root
      3,    0,    0,    0,    2,    0,    0,    0,    5, 0,  0,  0,  9,  0,  0,  0,   // place
      64,   0,    0,    0,    1,    0,    0,    0};                                   // size, flags
  EXPECT_EQ(std::memcmp(&header, expected, sizeof(expected)), 0);
  EXPECT_EQ(header.checksum, 0xe39d03ae63d8c778u);
}

TEST(Message, ComesBackFromItsBytes) {
  const MessageHeader header = sample();
  MessageHeader out;
  EXPECT_EQ(parse_message(bytes_of(header), 64, &out), "");
  EXPECT_EQ(std::memcmp(&out, &header, sizeof(out)), 0);
}

TEST(Message, NoticesEveryFlippedBitBehindTheKey) {
  for (size_t bit = 0; bit < 8 * sizeof(MessageHeader); ++bit) {
    MessageHeader header = sample();
    auto* const bytes = reinterpret_cast<unsigned char*>(&header);
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    MessageHeader out;
    EXPECT_NE(parse_message(bytes_of(header), 64, &out), "") << bit;
  }
}

TEST(Message, RefusesOtherLengths) {
  const MessageHeader header = sample();
  std::array<std::byte, 128> longer{};
  std::memcpy(longer.data(), &header, sizeof(header));
  MessageHeader out;
  for (size_t size = 0; size <= longer.size(); ++size) {
    const bool good = size == sizeof(MessageHeader);
    EXPECT_EQ(parse_message({longer.data(), size}, 64, &out) == "", good) << size;
    std::array<std::byte, 16> key;
    EXPECT_EQ(read_key({longer.data(), size}, &key), size >= 16);
  }
}

TEST(Message, RefusesFieldsThatMakeNoSense) {
  EXPECT_EQ(parse(sample()), "");
  const auto with = [](auto change) {
    MessageHeader header = sample();
    change(header);
    return parse(header);
  };
  EXPECT_NE(with([](MessageHeader& h) { h.magic ^= 1; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.kind = 0; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.kind = 5; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.operation = 0; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.operation = layout::kOpBroadcast; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.kind = static_cast<uint8_t>(MessageKind::kBroadcast); }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.kind = static_cast<uint8_t>(MessageKind::kGrant); }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.reduce_op = 5; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.dtype = 7; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.sequence = 0; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.scale_bits = 0; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.scale_bits = std::bit_cast<uint64_t>(-1.0); }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.scale_bits = std::bit_cast<uint64_t>(std::nan("")); }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.scale_bits = std::bit_cast<uint64_t>(HUGE_VAL); }), "");
  for (const int exponent : {-60, 60}) {
    EXPECT_EQ(with([&](MessageHeader& h) { h.scale_bits = std::bit_cast<uint64_t>(std::exp2(exponent)); }),
              "");
    EXPECT_NE(
        with([&](MessageHeader& h) { h.scale_bits = std::bit_cast<uint64_t>(std::exp2(exponent * 1.01)); }),
        "");
  }
  EXPECT_NE(with([](MessageHeader& h) { h.flags = 8; }), "");
  EXPECT_NE(with([](MessageHeader& h) { h.payload_bytes = 63; }), "");
}

TEST(Message, TakesTheKindsThatAnOperationHas) {
  // Rows: reduce, gather, grant, broadcast; columns: operations 0 to 6.
  constexpr bool kFits[4][7] = {{false, true, false, true, false, true, false},
                                {false, true, false, true, true, false, false},
                                {false, true, true, true, true, true, false},
                                {false, false, true, false, false, false, false}};
  for (uint8_t kind = 1; kind <= 4; ++kind) {
    for (uint8_t operation = 0; operation <= 6; ++operation) {
      MessageHeader header = sample();
      header.kind = kind;
      header.operation = operation;
      header.hop = header.chunk = header.segment = header.flags = header.payload_bytes = 0;
      EXPECT_EQ(parse(header, 0) == "", kFits[kind - 1][operation]) << int{kind} << " " << int{operation};
    }
  }
}

TEST(Message, FlushesAndDirectOnesAreAllreducesWithAFlagInTheSignature) {
  struct Flag {
    uint32_t bit;
    const char* sentence;
  };
  constexpr Flag kFlags[] = {
      {kMessageFlush, "flush average of 1000 float32 with scale 2 (layout a1a2a3a4a5a6a7a8)"},
      {kMessageDirect, "allreduce average, direct, of 1000 float32 with scale 2 (layout a1a2a3a4a5a6a7a8)"},
      {kMessageFlush | kMessageDirect,
       "flush average, direct, of 1000 float32 with scale 2 (layout a1a2a3a4a5a6a7a8)"}};
  for (const Flag& flag : kFlags) {
    MessageHeader message = sample();
    message.flags = flag.bit;
    EXPECT_EQ(parse(message), "");
    EXPECT_NE(signature_of(message), signature_of(sample()));
    EXPECT_EQ(describe(signature_of(message)), flag.sentence);
    message.flags |= kMessageNotFinite;
    EXPECT_EQ(parse(message), "");
    message.operation = layout::kOpReduceScatter;
    EXPECT_NE(parse(message), "");
    MessageHeader grant = sample();
    grant.kind = static_cast<uint8_t>(MessageKind::kGrant);
    grant.hop = grant.chunk = grant.segment = grant.payload_bytes = 0;
    grant.flags = flag.bit;
    EXPECT_EQ(parse(grant, 0), "");
    EXPECT_NE(signature_of(grant), signature_of(sample()));
    grant.flags |= kMessageNotFinite;
    EXPECT_NE(parse(grant, 0), "");
    grant.flags = flag.bit;
    grant.operation = layout::kOpBroadcast;
    EXPECT_NE(parse(grant, 0), "");
  }
}

TEST(Message, DescribesSignaturesForPeople) {
  EXPECT_EQ(describe(signature_of(sample())),
            "allreduce average of 1000 float32 with scale 2 (layout a1a2a3a4a5a6a7a8)");
  Signature broadcast;
  broadcast.operation = layout::kOpBroadcast;
  broadcast.root = 3;
  broadcast.dtype = 5;
  EXPECT_EQ(describe(broadcast), "broadcast of 0 int64 from rank 3 (layout 0)");
  broadcast.operation = layout::kOpAllgather;
  EXPECT_EQ(describe(broadcast), "allgather of 0 int64 (layout 0)");
  broadcast.operation = layout::kOpReduceScatter;
  broadcast.reduce_op = 3;
  EXPECT_EQ(describe(broadcast), "reduce_scatter max of 0 int64 (layout 0)");
  broadcast.operation = 77;
  broadcast.dtype = 99;
  EXPECT_EQ(describe(broadcast), "unknown operation of 0 unknown type (layout 0)");
}

}  // namespace
}  // namespace gradwire::engine
