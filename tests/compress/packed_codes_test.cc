// Packed codes: round trips, and refusal of what no sender writes.
#include "compress/packed_codes.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gradwire::compress::packed_codes {
namespace {

TEST(PackedCodes, GiveBackEveryCodeInTheBytesThatWereStated) {
  std::mt19937 random(1);
  for (uint32_t width = 0; width <= kMaxWidth; ++width) {
    for (size_t count = 0; count <= 67; ++count) {
      const uint32_t span = 1U << width;
      const auto minimum = static_cast<uint32_t>(random() % (129 - span));
      std::vector<uint8_t> codes(count);
      for (uint8_t& code : codes) {
        code = static_cast<uint8_t>((random() % 2 << 7) | (minimum + random() % span));
      }
      if (count >= 2) {
        codes[0] = static_cast<uint8_t>(minimum);
        codes[1] = static_cast<uint8_t>(minimum + span - 1);
      }
      const Packing packing = narrowest(codes);
      ASSERT_LE(packing.width, width);
      if (count >= 2) {
        ASSERT_EQ(packing.width, width);
        ASSERT_EQ(packing.minimum, minimum);
      }
      std::vector<std::byte> packed(bytes(count, packing.width) + 1, std::byte{0x5a});
      pack(codes, packing, packed.data());
      ASSERT_EQ(packed.back(), std::byte{0x5a});
      std::vector<uint8_t> back(count);
      ASSERT_TRUE(unpack(packed.data(), packing, back));
      ASSERT_EQ(back, codes) << count << " of width " << width;
    }
  }
}

TEST(PackedCodes, HaveTheFirstFieldInTheLowestBits) {
  const std::vector<uint8_t> codes = {10, 0x80 | 11,
                                      13};  // 0, sign and 1, 3 above the minimum, in 3 bits each
  const Packing packing = narrowest(codes);
  EXPECT_EQ(packing.minimum, 10);
  EXPECT_EQ(packing.width, 2);
  std::vector<std::byte> packed(bytes(3, 2));
  pack(codes, packing, packed.data());
  EXPECT_EQ(packed, (std::vector<std::byte>{std::byte{0b11101000}, std::byte{0}}));
}

TEST(PackedCodes, KeepTheCodeForWhatIsNotFinite) {
  const std::vector<uint8_t> codes = {0x80, 127, 0xff};
  std::vector<std::byte> packed(bytes(3, 7));
  pack(codes, narrowest(codes), packed.data());
  std::vector<uint8_t> back(3);
  ASSERT_TRUE(unpack(packed.data(), narrowest(codes), back));
  EXPECT_EQ(back, codes);
}

TEST(PackedCodes, RefuseWhatNoSenderWrites) {
  const std::vector<std::byte> zeros(16);
  std::vector<uint8_t> codes(5);
  EXPECT_TRUE(unpack(zeros.data(), {127, 7}, codes));
  EXPECT_FALSE(unpack(zeros.data(), {128, 3}, codes));
  EXPECT_FALSE(unpack(zeros.data(), {1, 8}, codes));
  std::vector<std::byte> padded = zeros;
  padded[2] = std::byte{0x10};  // 5 fields of 4 bits end below it
  EXPECT_FALSE(unpack(padded.data(), {1, 3}, codes));
  std::vector<std::byte> beyond = zeros;
  beyond[1] = std::byte{0x07};  // 121 + 7 is no magnitude
  EXPECT_FALSE(unpack(beyond.data(), {121, 3}, codes));
  EXPECT_TRUE(unpack(beyond.data(), {120, 3}, codes));
}

}  // namespace
}  // namespace gradwire::compress::packed_codes
