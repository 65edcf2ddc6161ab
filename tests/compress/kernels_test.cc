// Every instruction set of this machine against the plain loops, bit for bit: dense kernels.
#include "compress/cpu/kernels.h"

#include <array>

#include "config/base/scramble.h"
#include "kernel_inputs.h"

namespace gradwire::compress::cpu {
namespace {

constexpr size_t kGuard = 16;
constexpr float kUntouched = 12345.0F;

// Runs `call(table, out)` with the reference and the set at hand; outputs start at an odd place and must end
// where they should.
template <class Call>
void expect_same_floats(const Kernels& table, size_t count, Call call) {
  std::vector<float> expected(count + kGuard, kUntouched);
  std::vector<float> actual(count + kGuard, kUntouched);
  call(reference(), expected.data() + 3);
  call(table, actual.data() + 3);
  ASSERT_TRUE(same(actual, expected)) << count;
}

TEST(Kernels, TheReferenceIsOfferedLastAndTheFastestIsChosen) {
  ASSERT_FALSE(offered().empty());
  EXPECT_EQ(offered().back(), &reference());
  EXPECT_EQ(offered().front(), &kernels());
}

TEST(Kernels, SumsAndProductsHaveTheBitsOfTheReference) {
  for_each_set([](const Kernels& table) {
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto a = make_values(kind, count + 1, 1);
        const auto b = make_values(Kind::kSpecial, count + 1, 2);
        expect_same_floats(table, count,
                           [&](const Kernels& k, float* out) { k.add(&a[1], b.data(), out, count); });
        expect_same_floats(table, count,
                           [&](const Kernels& k, float* out) { k.add_zero(&a[1], out, count); });
        expect_same_floats(table, count,
                           [&](const Kernels& k, float* out) { k.multiply(&a[1], 0.3F, out, count); });
        std::vector<std::byte> bytes(4 * count + 1);
        std::memcpy(bytes.data() + 1, a.data(), 4 * count);
        expect_same_floats(table, count, [&](const Kernels& k, float* out) {
          k.add_bytes(bytes.data() + 1, b.data(), out, count);
        });
        auto in_place = a;
        table.add(in_place.data(), b.data(), in_place.data(), count);
        auto expected = a;
        reference().add(expected.data(), b.data(), expected.data(), count);
        ASSERT_TRUE(same(in_place, expected));
      }
    }
  });
}

TEST(Kernels, NormsHaveTheBitsOfTheReference) {
  for_each_set([](const Kernels& table) {
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto values = make_values(kind, count + 1, 3);
        ASSERT_EQ(table.max_magnitude(&values[1], count), reference().max_magnitude(&values[1], count));
        std::array<double, kPartials> expected{};
        expected[3] = 0.1;
        auto actual = expected;
        reference().add_squares(&values[1], count, expected.data());
        table.add_squares(&values[1], count, actual.data());
        for (size_t i = 0; i < kPartials; ++i) {
          ASSERT_TRUE(same(actual[i], expected[i])) << i << " of " << count;
        }
        reference().add_magnitudes(&values[1], count, expected.data());
        table.add_magnitudes(&values[1], count, actual.data());
        for (size_t i = 0; i < kPartials; ++i) {
          ASSERT_TRUE(same(actual[i], expected[i])) << "magnitudes, " << i << " of " << count;
        }
      }
    }
  });
}

TEST(Kernels, SixteenBitFloatsHaveTheBitsOfTheReference) {
  std::vector<std::byte> every(2 * 65536 + 1);
  for (uint32_t half = 0; half < 65536; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    std::memcpy(every.data() + 1 + size_t{2} * half, &bits, 2);
  }
  for_each_set([&](const Kernels& table) {
    for (const auto member : {&Kernels::widen_fp16, &Kernels::widen_bf16}) {
      expect_same_floats(table, 65536,
                         [&](const Kernels& k, float* out) { (k.*member)(every.data() + 1, out, 65536); });
    }
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto values = make_values(kind, count + 1, 5);
        for (const auto member : {&Kernels::narrow_fp16, &Kernels::narrow_bf16}) {
          std::vector<std::byte> expected(2 * count + 2);
          auto actual = expected;
          (reference().*member)(&values[1], 3.0F, expected.data() + 1, count);
          (table.*member)(&values[1], 3.0F, actual.data() + 1, count);
          ASSERT_EQ(actual, expected);
        }
        std::vector<std::byte> expected(2 * count + 2);
        auto actual = expected;
        const uint64_t key = scramble(count);
        reference().narrow_bf16_by_chance(&values[1], key, expected.data() + 1, count);
        table.narrow_bf16_by_chance(&values[1], key, actual.data() + 1, count);
        ASSERT_EQ(actual, expected) << count;
      }
    }
  });
}

TEST(Kernels, L8EncodesTheBytesOfTheReference) {
  for_each_set([](const Kernels& table) {
    for (const Kind kind : kKinds) {
      for (const size_t count : interesting_counts()) {
        const auto values = make_values(kind, count, 7);
        const uint32_t scale = reference().max_magnitude(values.data(), count) >> 23;
        auto expected = values;
        auto actual = values;
        std::vector<uint8_t> expected_codes(count + kGuard, 0x5a);
        auto actual_codes = expected_codes;
        reference().l8_encode(expected.data(), count, scale, expected_codes.data() + 1);
        table.l8_encode(actual.data(), count, scale, actual_codes.data() + 1);
        ASSERT_EQ(actual_codes, expected_codes) << count << " of scale " << scale;
        ASSERT_TRUE(same(actual, expected)) << count << " of scale " << scale;
      }
    }
  });
}

TEST(Kernels, L8EncodesEveryScaleAndEveryExponentBelowIt) {
  for_each_set([](const Kernels& table) {
    for (uint32_t scale = 0; scale < 256; ++scale) {
      auto values = make_values(Kind::kEveryExponent, 640, scale);
      for (float& value : values) {
        const auto bits = std::bit_cast<uint32_t>(value);
        const uint32_t exponent = scale - std::min(scale, bits >> 13 & 31);
        value = std::bit_cast<float>((bits & 0x807fffff) | exponent << 23);
      }
      auto expected = values;
      std::vector<uint8_t> expected_codes(values.size());
      auto actual_codes = expected_codes;
      reference().l8_encode(expected.data(), values.size(), scale, expected_codes.data());
      table.l8_encode(values.data(), values.size(), scale, actual_codes.data());
      ASSERT_EQ(actual_codes, expected_codes) << scale;
      ASSERT_TRUE(same(values, expected)) << scale;
    }
  });
}

TEST(Kernels, L8DecodesEveryCodeOfEveryScaleAsTheReferenceDoes) {
  for_each_set([](const Kernels& table) {
    for (uint32_t scale = 0; scale < 256; ++scale) {
      for (const bool any : {false, true}) {
        const auto codes = make_codes(700, scale, any);
        const auto addend = make_values(Kind::kSpecial, 700, scale);
        for (const size_t count : {0U, 5U, 64U, 77U, 699U}) {
          expect_same_floats(table, count, [&](const Kernels& k, float* out) {
            k.l8_decode_add(&codes[1], count, scale, &addend[1], out);
          });
          expect_same_floats(table, count, [&](const Kernels& k, float* out) {
            k.l8_decode_scaled(&codes[1], count, scale, 0.3F, out);
          });
        }
      }
    }
  });
}

struct HopCase {
  std::vector<float> residual, g1, g2;
  std::vector<uint8_t> arrived;
  uint32_t scale = 0;
};

void expect_same_hop(const Kernels& table, const HopCase& given, size_t count, size_t ranks, bool arrived) {
  const std::array<const void*, 2> locals = {given.g1.data(), given.g2.data()};
  const auto run = [&](const Kernels& k, std::vector<float>& next, std::vector<uint8_t>& codes) {
    return k.l8_hop({.arrived = arrived ? given.arrived.data() : nullptr,
                     .arrived_scale = given.scale,
                     .residual = given.residual.data() + 1,
                     .locals = {locals.data(), ranks},
                     .first = 2,
                     .count = count,
                     .codes = codes.data() + 1,
                     .next = next.data()});
  };
  std::vector<float> expected(count + kGuard, kUntouched);
  auto actual = expected;
  std::vector<uint8_t> expected_codes(count + kGuard, 0x5a);
  auto actual_codes = expected_codes;
  const L8HopSums a = run(reference(), expected, expected_codes);
  const L8HopSums b = run(table, actual, actual_codes);
  ASSERT_EQ(a.largest >> 23, b.largest >> 23) << count;
  if (a.largest <= 0x7f800000) {
    ASSERT_EQ(a.largest, b.largest) << count;
  }
  ASSERT_TRUE(same(a.rest, b.rest)) << count;
  ASSERT_EQ(actual_codes, expected_codes) << count;
  ASSERT_TRUE(same(actual, expected)) << count;
}

TEST(Kernels, L8HopsHaveTheBitsOfTheReference) {
  for_each_set([](const Kernels& table) {
    uint32_t seed = 0;
    for (const Kind kind : kKinds) {
      HopCase given{make_values(kind, kFusedBlock + 1, 11),
                    make_values(kind, kFusedBlock + 2, 12),
                    make_values(Kind::kGauss, kFusedBlock + 2, 13),
                    {},
                    0};
      for (const size_t count : interesting_counts()) {
        for (size_t ranks = 0; ranks <= 2; ++ranks) {
          ++seed;
          given.arrived = make_codes(count, seed, seed % 7 == 0);
          given.scale = seed % 3 == 0 ? seed % 256 : 117;
          expect_same_hop(table, given, count, ranks, false);
          expect_same_hop(table, given, count, ranks, true);
        }
      }
    }
  });
}

TEST(Kernels, AnL8HopMayLeaveTheResidualInItsPlace) {
  for_each_set([](const Kernels& table) {
    const auto gradient = make_values(Kind::kGauss, 1000, 21);
    const void* const local = gradient.data();
    auto expected = make_values(Kind::kGauss, 1000, 22);
    auto actual = expected;
    std::vector<uint8_t> expected_codes(1000);
    auto actual_codes = expected_codes;
    L8Hop hop{.residual = expected.data(), .locals = {&local, 1}, .count = 1000};
    hop.codes = expected_codes.data();
    hop.next = expected.data();
    reference().l8_hop(hop);
    hop.codes = actual_codes.data();
    hop.residual = actual.data();
    hop.next = actual.data();
    table.l8_hop(hop);
    EXPECT_EQ(actual_codes, expected_codes);
    EXPECT_TRUE(same(actual, expected));
  });
}

}  // namespace
}  // namespace gradwire::compress::cpu
