// Bitmap and Elias-Fano: round trips, and refusal of everything that is not exactly what a sender writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "compress/bitmap.h"
#include "compress/elias_fano.h"
#include "compress/select.h"

namespace gradwire::compress {
namespace {

std::vector<uint32_t> draw_positions(uint32_t elements, uint32_t count, std::mt19937& random) {
  std::vector<uint32_t> all(elements);
  for (uint32_t i = 0; i < elements; ++i) {
    all[i] = i;
  }
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Bitmap, GivesBackThePositions) {
  std::mt19937 random(1);
  for (const uint32_t elements : {1U, 7U, 8U, 9U, 63U, 64U, 65U, 1000U, 65536U}) {
    for (const uint32_t count : {1U, elements / 2 + 1, elements}) {
      const auto positions = draw_positions(elements, count, random);
      std::vector<std::byte> bytes(bitmap::bytes(elements));
      bitmap::write(positions, elements, bytes.data());
      std::vector<uint32_t> back(count);
      ASSERT_TRUE(bitmap::read(bytes.data(), elements, back));
      EXPECT_EQ(back, positions);
      std::vector<uint32_t> wrong_count(count + 1);
      EXPECT_FALSE(bitmap::read(bytes.data(), elements, wrong_count));
    }
  }
}

TEST(Bitmap, RefusesBitsBeyondTheBlock) {
  const std::vector<std::byte> bytes = {std::byte{0x01}, std::byte{0x08}};
  std::vector<uint32_t> positions(2);
  EXPECT_TRUE(bitmap::read(bytes.data(), 12, positions));
  EXPECT_FALSE(bitmap::read(bytes.data(), 11, positions));
}

TEST(EliasFano, GivesBackThePositionsWithEveryNumberOfLowBits) {
  std::mt19937 random(2);
  for (const uint32_t elements : {1U, 2U, 63U, 100U, 4097U, 65536U}) {
    for (const uint32_t count : {1U, elements / 100 + 1, elements / 2 + 1, elements}) {
      const auto positions = draw_positions(elements, count, random);
      for (uint32_t low = 0; low <= elias_fano::kMaxLowBits; ++low) {
        // A guard after the last byte: reads and writes stay inside.
        std::vector<std::byte> bytes(elias_fano::bytes(elements, count, low) + 1, std::byte{0x5a});
        elias_fano::write(positions, elements, low, bytes.data());
        ASSERT_EQ(bytes.back(), std::byte{0x5a});
        std::vector<uint32_t> back(count);
        ASSERT_TRUE(elias_fano::read(bytes.data(), elements, low, back)) << elements << " " << low;
        ASSERT_EQ(back, positions);
      }
    }
  }
}

TEST(EliasFano, ChoosesTheRoundedLogarithmOfTheMeanGap) {
  for (const uint32_t elements : {1U, 100U, 8192U, 65536U}) {
    for (uint32_t count = 1; count <= elements; count += 1 + count / 7) {
      const double exact = std::log2(std::numbers::ln2 * elements / count);
      const auto expected = static_cast<uint32_t>(std::clamp(std::lround(exact), 0L, 15L));
      EXPECT_EQ(elias_fano::low_bits(elements, count), expected) << elements << " " << count;
    }
  }
}

TEST(EliasFano, ComesCloseToTheEntropy) {
  // 8.56 bits a position at 1%, 11.95 at 0.1%.
  EXPECT_NEAR(8.0 * elias_fano::bytes(65536, 655, elias_fano::low_bits(65536, 655)) / 655, 8.56, 0.05);
  EXPECT_NEAR(8.0 * elias_fano::bytes(65536, 66, elias_fano::low_bits(65536, 66)) / 66, 11.95, 0.2);
}

TEST(EliasFano, StaysWithinSixTenthsOfABitOfTheEntropyOfAPosition) {
  for (const double density : {0.001, 0.01, 0.06}) {
    const auto count = static_cast<uint32_t>(std::lround(65536 * density));
    const uint32_t low = elias_fano::low_bits(65536, count);
    const size_t used = size_t{count} * low + elias_fano::upper_bits(65536, count, low);
    const double entropy = (-density * std::log2(density) - (1 - density) * std::log2(1 - density)) / density;
    EXPECT_LT(static_cast<double>(used) / count, entropy + 0.6) << density;
    // Both strings end with a whole byte, which few positions feel.
    EXPECT_LE(8 * elias_fano::bytes(65536, count, low), used + 14) << density;
  }
}

TEST(EliasFano, RefusesEverySingleBitFlipThatBreaksTheOrderOrTheCount) {
  std::mt19937 random(4);
  constexpr uint32_t kElements = 500;
  const auto positions = draw_positions(kElements, 20, random);
  const uint32_t low = elias_fano::low_bits(kElements, 20);
  std::vector<std::byte> bytes(elias_fano::bytes(kElements, 20, low));
  elias_fano::write(positions, kElements, low, bytes.data());
  int accepted = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto broken = bytes;
    broken[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    std::vector<uint32_t> back(20);
    if (elias_fano::read(broken.data(), kElements, low, back)) {
      ++accepted;
      EXPECT_TRUE(std::is_sorted(back.begin(), back.end(), std::less_equal<>())) << bit;
      EXPECT_LT(back.back(), kElements);
      EXPECT_LT(bit, 20 * low) << "a flip in the upper bits changes their count";
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Select, TakesWhatReachesTheThresholdAndNeverAZero) {
  std::vector<float> values(1000, 0.0F);
  values[3] = -2;
  values[500] = 1;
  values[999] = 1.5F;
  values[40] = std::bit_cast<float>(1U);
  std::vector<uint32_t> positions(1000);
  EXPECT_EQ(select(values.data(), 1000, threshold_bits(1.0), positions.data()), 3U);
  EXPECT_EQ(positions[0], 3U);
  EXPECT_EQ(positions[2], 999U);
  EXPECT_EQ(select(values.data(), 1000, threshold_bits(0.0), positions.data()), 4U);
  EXPECT_EQ(select(values.data(), 1000, threshold_bits(HUGE_VAL), positions.data()), 0U);
  values[77] = -HUGE_VALF;
  values[78] = NAN;
  EXPECT_EQ(select(values.data(), 1000, threshold_bits(HUGE_VAL), positions.data()), 2U);
}

TEST(Select, RaisesTheThresholdUntilTheCapIsKeptAndNeverSplitsEqualValues) {
  const std::vector<float> values = {5, -4, 4, 3, 3, -3, 2, 1};
  std::vector<uint32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<uint32_t> scratch(8);
  const uint32_t expected[] = {0, 1, 1, 3, 3, 3, 6, 7};
  for (uint32_t cap = 1; cap < 8; ++cap) {
    auto kept = positions;
    const uint32_t threshold = raised_threshold(values.data(), positions, cap, scratch.data());
    EXPECT_EQ(select_again(values.data(), kept, threshold), expected[cap]) << cap;
  }
}

TEST(Select, KeepsAllThatShareTheLargestMagnitude) {
  const std::vector<float> values = {1, 7, -7, 7, 2};
  std::vector<uint32_t> positions = {0, 1, 2, 3, 4};
  std::vector<uint32_t> scratch(5);
  const uint32_t threshold = raised_threshold(values.data(), positions, 2, scratch.data());
  EXPECT_EQ(select_again(values.data(), positions, threshold), 3U);
}

}  // namespace
}  // namespace gradwire::compress
