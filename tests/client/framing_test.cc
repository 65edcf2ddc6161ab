#include "client/wire/framing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

namespace gradwire::wire {
namespace {

TEST(Framing, AFrameIsALittleEndianLengthAndTheDocument) {
  EXPECT_EQ(encode_frame("{}"), std::string("\x02\0\0\0{}", 6));
  EXPECT_EQ(encode_frame(std::string(0x0102, 'x')).substr(0, 4), std::string("\x02\x01\0\0", 4));
}

TEST(Framing, AStreamCutAnywhereGivesTheSameDocuments) {
  const std::string stream = encode_frame("{\"a\":1}") + encode_frame("{}") + encode_frame("{\"b\":[2]}");
  for (size_t cut = 1; cut <= stream.size(); ++cut) {
    FrameReader reader(64);
    std::vector<std::string> documents;
    for (size_t at = 0; at < stream.size(); at += cut) {
      ASSERT_TRUE(reader.feed(stream.data() + at, std::min(cut, stream.size() - at)).ok());
      while (auto document = reader.next()) {
        documents.push_back(*document);
      }
    }
    EXPECT_EQ(documents, (std::vector<std::string>{"{\"a\":1}", "{}", "{\"b\":[2]}"})) << "cut " << cut;
    EXPECT_EQ(reader.pending(), 0u);
  }
}

TEST(Framing, AnAnnouncementAboveTheLimitIsRefusedBeforeItsBytesCome) {
  FrameReader reader(8);
  const std::string good = encode_frame("12345678");
  ASSERT_TRUE(reader.feed(good.data(), good.size()).ok());
  EXPECT_EQ(reader.next(), "12345678");
  const std::string bad = encode_frame("123456789").substr(0, kFrameHeader);
  const Status status = reader.feed(bad.data(), bad.size());
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("9 bytes"), std::string::npos) << status.message();
  EXPECT_EQ(reader.feed("x", 1).code(), Code::kCorrupt);
  EXPECT_FALSE(reader.next());
}

TEST(Framing, ABadFrameBehindAGoodOneIsReportedAfterTheGoodOne) {
  FrameReader reader(8);
  const std::string stream = encode_frame("good") + std::string("\xff\xff\xff\xff", 4);
  ASSERT_TRUE(reader.feed(stream.data(), stream.size()).ok());
  EXPECT_TRUE(reader.status().ok());
  EXPECT_EQ(reader.next(), "good");
  EXPECT_EQ(reader.status().code(), Code::kCorrupt) << "at once: nothing more may come";
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.feed("", 0).code(), Code::kCorrupt);
}

TEST(Framing, AnEmptyDocumentIsRefused) {
  FrameReader reader(8);
  EXPECT_EQ(reader.feed("\0\0\0\0", 4).code(), Code::kCorrupt);
}

TEST(DescriptorPassing, DescriptorsArriveInOrderAndCloseOnExec) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
  const UniqueFd left(pair[0]);
  const UniqueFd right(pair[1]);
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  UniqueFd reading(pipe_ends[0]);
  UniqueFd writing(pipe_ends[1]);
  const std::array<int, 2> passed{reading.get(), writing.get()};

  const auto sent = send_some(left.get(), "hello", passed);
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(*sent, 5u);
  std::vector<UniqueFd> descriptors;
  std::array<char, 64> buffer{};
  const auto received = receive_some(right.get(), buffer, &descriptors);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(std::string(buffer.data(), (*received).bytes), "hello");
  ASSERT_EQ(descriptors.size(), 2u);
  EXPECT_NE(fcntl(descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(descriptors[1].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(reading.get(), &byte, 1), 1);
}

TEST(DescriptorPassing, AnEmptySocketWouldBlockAndAClosedOneIsAtItsEnd) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
  UniqueFd left(pair[0]);
  const UniqueFd right(pair[1]);
  std::vector<UniqueFd> descriptors;
  std::array<char, 8> buffer{};
  auto received = receive_some(right.get(), buffer, &descriptors);
  ASSERT_TRUE(received.ok());
  EXPECT_TRUE((*received).would_block);
  left.reset();
  received = receive_some(right.get(), buffer, &descriptors);
  ASSERT_TRUE(received.ok());
  EXPECT_TRUE((*received).end_of_file);
  EXPECT_EQ(send_some(right.get(), "x").status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace gradwire::wire
