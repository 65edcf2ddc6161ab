// Every instruction set of this machine against the plain loops, bit for bit: selection and positions.
#include <array>

#include "compress/bitmap.h"
#include "compress/cpu/fused.h"
#include "compress/elias_fano.h"
#include "compress/l8.h"
#include "compress/select.h"
#include "kernel_inputs.h"

namespace gradwire::compress::cpu {
namespace {

constexpr uint32_t kMark = 0xdeadbeef;

std::vector<uint32_t> random_positions(uint32_t elements, double density, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < elements; ++i) {
    if (static_cast<double>(random()) < density * 4294967296.0) {
      positions.push_back(i);
    }
  }
  return positions;
}

TEST(SparseKernels, SelectTheElementsOfTheReference) {
  for_each_set([](const Kernels& table) {
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto values = make_values(kind, count + 1, 1);
        for (const uint32_t threshold : {1U, 0x00800000U, 0x3a83126fU, 0x3b03126fU, 0x7f800000U}) {
          std::vector<uint32_t> expected(count + 1, kMark);
          auto actual = expected;
          const auto n = static_cast<uint32_t>(count);
          const uint32_t kept = reference().select(&values[1], n, threshold, expected.data());
          ASSERT_EQ(table.select(&values[1], n, threshold, actual.data()), kept) << count;
          ASSERT_EQ(actual.back(), kMark) << count;
          expected.resize(kept);
          actual.resize(kept);
          ASSERT_EQ(actual, expected) << count;
        }
      }
    }
  });
}

TEST(SparseKernels, ScanWithTheBitsOfTheReference) {
  for_each_set([](const Kernels& table) {
    uint32_t seed = 0;
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto base = make_values(kind, count, ++seed);
        const auto g1 = make_values(Kind::kGauss, count + 5, ++seed);
        const auto g2 = make_values(kind, count + 5, ++seed);
        const std::array<const void*, 2> locals = {g1.data(), g2.data()};
        const auto run = [&](const Kernels& k, size_t ranks, std::vector<float>& sum,
                             std::vector<uint32_t>& positions, std::array<double, kPartials>& partials) {
          return k.scan({.base = base.data(),
                         .locals = {locals.data(), ranks},
                         .first = 5,
                         .count = static_cast<uint32_t>(count),
                         .sum = sum.data(),
                         .threshold = 0x3b03126f,
                         .position = 1000},
                        partials.data(), positions.data());
        };
        for (size_t ranks = 0; ranks <= 2; ++ranks) {
          std::vector<float> expected(count + 1, 1.0F);
          auto actual = expected;
          std::vector<uint32_t> expected_positions(count + 1, kMark);
          auto actual_positions = expected_positions;
          std::array<double, kPartials> expected_partials{};
          auto actual_partials = expected_partials;
          const uint32_t kept = run(reference(), ranks, expected, expected_positions, expected_partials);
          ASSERT_EQ(run(table, ranks, actual, actual_positions, actual_partials), kept);
          ASSERT_TRUE(same(actual, expected));
          ASSERT_EQ(actual_positions.back(), kMark);
          actual_positions.resize(kept);
          expected_positions.resize(kept);
          ASSERT_EQ(actual_positions, expected_positions);
          for (size_t i = 0; i < kPartials; ++i) {
            ASSERT_TRUE(same(actual_partials[i], expected_partials[i]));
          }
        }
      }
    }
  });
}

TEST(SparseKernels, ReadBitsAsTheReferenceDoes) {
  for_each_set([](const Kernels& table) {
    std::mt19937 random(9);
    for (size_t bytes = 0; bytes < 80; ++bytes) {
      for (const uint32_t mask : {0x00U, 0x11U, 0x7eU, 0xffU}) {
        std::vector<std::byte> bits(bytes + 1);
        for (std::byte& byte : bits) {
          byte = static_cast<std::byte>(mask == 0xff && bytes % 2 == 0 ? 0xff : random() & mask);
        }
        const std::byte* const from = bits.data() + 1;
        const size_t count = reference().count_bits(from, bytes);
        ASSERT_EQ(table.count_bits(from, bytes), count);
        std::vector<uint32_t> expected(count + 1, kMark);
        auto actual = expected;
        reference().set_bits(from, bytes, expected.data(), count);
        table.set_bits(from, bytes, actual.data(), count);
        ASSERT_EQ(actual, expected);
      }
    }
  });
}

TEST(SparseKernels, JoinEliasFanosHalvesAsTheReferenceDoes) {
  for_each_set([](const Kernels& table) {
    std::mt19937 random(4);
    for (uint32_t low = 0; low <= elias_fano::kMaxLowBits; ++low) {
      for (const size_t count : interesting_counts()) {
        // Any bytes and any non-decreasing upper parts: some results increase, some do not.
        for (const bool sorted : {true, false}) {
          std::vector<std::byte> lows(elias_fano::low_bytes(static_cast<uint32_t>(count), low) + 1);
          for (std::byte& byte : lows) {
            byte = static_cast<std::byte>(random());
          }
          std::vector<uint32_t> expected(count);
          uint32_t bit = 0;
          for (uint32_t& position : expected) {
            position = bit;
            bit += 1 + (sorted ? 1U : static_cast<uint32_t>(random() % 2));
          }
          auto actual = expected;
          const size_t size = lows.size() - 1;
          const bool good = reference().join_lows(lows.data() + 1, size, low, expected.data(), count);
          ASSERT_EQ(table.join_lows(lows.data() + 1, size, low, actual.data(), count), good);
          ASSERT_EQ(actual, expected) << low << " " << count;
          ASSERT_TRUE(good || !sorted || low > 0);
        }
      }
    }
  });
}

TEST(SparseKernels, NoticeOneStepBackAmongManyForward) {
  for_each_set([](const Kernels& table) {
    const auto forward = random_positions(65536, 0.01, 3);
    const auto count = static_cast<uint32_t>(forward.size());
    constexpr uint32_t kLow = 6;
    for (size_t wrong = 1; wrong < 70; ++wrong) {
      std::vector<uint32_t> positions = forward;
      positions[wrong] = positions[wrong - 1];
      std::vector<std::byte> bytes(elias_fano::bytes(65536, count, kLow));
      elias_fano::write(positions, 65536, kLow, bytes.data());
      for (uint32_t i = 0; i < count; ++i) {
        positions[i] = (positions[i] >> kLow) + i;
      }
      ASSERT_FALSE(table.join_lows(bytes.data(), bytes.size(), kLow, positions.data(), count)) << wrong;
    }
  });
}

TEST(Fused, CodesAreAddedWhereTheirPositionsSay) {
  for (const uint32_t elements : {1U, 63U, 1000U, 5003U}) {
    for (const double density : {0.02, 0.3, 0.9}) {
      const auto positions = random_positions(elements, density, elements);
      const auto codes = make_codes(positions.size(), 5, false);
      const auto residual = make_values(Kind::kSpecial, elements, 6);
      std::vector<float> expected(residual.begin(), residual.begin() + elements);
      auto actual = expected;
      for (size_t i = 0; i < positions.size(); ++i) {
        expected[positions[i]] = l8::decode_float(codes[i], 120) + expected[positions[i]];
      }
      add_codes(positions.data(), codes.data(), codes.size(), 120, actual.data());
      ASSERT_TRUE(same(actual, expected));
    }
  }
}

TEST(Fused, AScanByTilesIsTheScanOfTheBlock) {
  constexpr uint32_t kElements = 5000;
  const auto base = make_values(Kind::kGauss, kElements, 1);
  const auto gradient = make_values(Kind::kGauss, kElements, 2);
  const void* const local = gradient.data();
  std::vector<float> whole(kElements), tiled(kElements);
  std::vector<uint32_t> whole_positions(kElements), tiled_positions(kElements);
  const uint32_t threshold = threshold_bits(2e-3);
  BlockScan at_once(whole_positions.data());
  at_once.take({.base = base.data(),
                .locals = {&local, 1},
                .count = kElements,
                .sum = whole.data(),
                .threshold = threshold});
  BlockScan by_tiles(tiled_positions.data());
  for (uint32_t begin = 0; begin < kElements; begin += 2048) {
    by_tiles.take({.base = base.data() + begin,
                   .locals = {&local, 1},
                   .first = begin,
                   .count = std::min(2048U, kElements - begin),
                   .sum = tiled.data() + begin,
                   .threshold = threshold,
                   .position = begin});
  }
  EXPECT_TRUE(same(tiled, whole));
  EXPECT_EQ(by_tiles.squares(), at_once.squares());
  EXPECT_GT(at_once.selected(), 0U);
  ASSERT_EQ(by_tiles.selected(), at_once.selected());
  EXPECT_EQ(tiled_positions, whole_positions);
}

}  // namespace
}  // namespace gradwire::compress::cpu
