// The compression state as bytes: damage is found, and named.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/compress/state_bytes.h"

namespace gradwire::compress {
namespace {

using namespace state_bytes;  // NOLINT(google-build-using-namespace)
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StateDamage, EveryTruncationIsNoticed) {
  const Bytes whole = written(sections());
  for (size_t length = 0; length < whole.size(); ++length) {
    const Status status = read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    ASSERT_EQ(status.code(), Code::kCorrupt) << length;
    ASSERT_THAT(status.message(), HasSubstr("ends at byte " + std::to_string(length)));
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THAT(read(longer).message(),
              HasSubstr("ends at byte " + std::to_string(whole.size()) + ", and more follows"));
}

TEST(StateDamage, EveryFlippedBitIsNoticed) {
  Bytes bytes = written(sections());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] ^= std::byte(1 << bit);
      const Status status = read(bytes);
      ASSERT_FALSE(status.ok()) << "byte " << at << ", bit " << bit;
      ASSERT_TRUE(status.code() == Code::kCorrupt || status.code() == Code::kUnsupported);
      bytes[at] ^= std::byte(1 << bit);
    }
  }
}

TEST(StateDamage, DamageIsNamed) {
  const Bytes whole = written(sections());
  Bytes bytes = whole;
  bytes[bytes.size() - 20] ^= std::byte{1};  // in the last residual
  EXPECT_THAT(read(bytes).message(), AllOf(HasSubstr("layer \"w\" of bucket \"größer\""),
                                           HasSubstr("checksum of its residual is 0x"),
                                           HasSubstr("and should be 0x"), HasSubstr("another copy")));
  bytes = whole;
  bytes.back() ^= std::byte{1};
  EXPECT_THAT(read(bytes).message(), HasSubstr("at its end: the checksum of all of it is 0x"));
  bytes = whole;
  bytes[bytes.size() - 8] = std::byte{'X'};
  EXPECT_THAT(read(bytes).message(),
              HasSubstr("at its end: its mark is 0x4e455758 and should be 0x4e455747"));
  bytes = whole;
  bytes[0] = std::byte{'P'};
  EXPECT_THAT(read(bytes).message(),
              AllOf(HasSubstr("not a compression state"),
                    HasSubstr("begins with the bytes 50 57 53 54 41 54 45 0a and should begin with 47 57")));
  bytes = whole;
  for (const std::byte version : {std::byte{0}, std::byte{3}}) {
    bytes[12] = version;
    put_crc(bytes, 0, 60);
    EXPECT_EQ(read(bytes).code(), Code::kUnsupported);
    EXPECT_THAT(read(bytes).message(),
                HasSubstr(version == std::byte{0} ? "reads versions 1 to 2: take another"
                                                  : "reads versions 1 to 2: update"));
  }
}

TEST(StateDamage, DamagedHeadsAreToldByWhatIsThereAndWhatShouldBe) {
  const Bytes whole = written(sections());
  const auto message = [&](size_t at, uint32_t value, bool sealed = false) {
    Bytes bytes = whole;
    store(bytes.data() + at, value);
    if (sealed) {
      put_crc(bytes, 0, 60);
    }
    return read(bytes).message();
  };
  constexpr size_t kSection = 64;
  constexpr size_t kLayer = kSection + 12 + 2 + 4;
  EXPECT_THAT(message(8, 0x0d0c0b0a), HasSubstr("byte order is 0x0d0c0b0a and should be 0x0a0b0c0d"));
  char crc[32];
  std::snprintf(crc, sizeof(crc), "should be 0x%08x", crc32c(std::span(whole).first(60)));
  EXPECT_THAT(message(60, 7), AllOf(HasSubstr("in its header: its checksum is 0x00000007"), HasSubstr(crc)));
  EXPECT_THAT(message(56, 3, true), HasSubstr("reserved bytes 56 to 59 are 0x00000003 and should be 0"));
  EXPECT_THAT(message(40, 1000, true), HasSubstr("5 layers in 1000 buckets take more than the"));
  EXPECT_THAT(message(kSection, 5),
              HasSubstr("in the head of bucket 1: its mark is 0x00000005 and should be 0x55425747"));
  EXPECT_THAT(message(kSection + 4, 4097), AllOf(HasSubstr("name of 4097 bytes"), HasSubstr("at most 4096")));
  EXPECT_THAT(message(kSection + 8, 9), AllOf(HasSubstr("9 layers"), HasSubstr("5 layers that are left")));
  EXPECT_THAT(message(kSection + 14, 9), HasSubstr("in the head of bucket 1: its checksum is 0x00000009"));
  EXPECT_THAT(
      message(kLayer, 5),
      HasSubstr("in the head of layer 1 of bucket \"b0\": its mark is 0x00000005 and should be 0x414c5747"));
  EXPECT_THAT(message(kLayer + 4, 0), AllOf(HasSubstr("name of 0 bytes"), HasSubstr("1 to 4096")));
  EXPECT_THAT(message(kLayer + 12, 1), HasSubstr("4294967301 elements"));
  using state_layout::kLayerBytes;
  using state_layout::kPiecesAt;
  EXPECT_THAT(message(kLayer + kPiecesAt, 65537),
              AllOf(HasSubstr("65537 pieces"), HasSubstr("at most 65536")));
  EXPECT_THAT(message(kLayer + kPiecesAt + 4, 4), AllOf(HasSubstr("contents"), HasSubstr("0x00000004")));
  EXPECT_THAT(message(kLayer + state_layout::kReservedAt, 2), HasSubstr("reserved bytes of 0x00000002"));
  EXPECT_THAT(message(kLayer + kLayerBytes, 2),
              HasSubstr("in the head of layer 1 of bucket \"b0\": its checksum is 0x"));
}

TEST(StateDamage, NumbersThatMakeNoSenseAreRefusedUnderGoodChecksums) {
  const auto refused = [](auto edit, const char* why) {
    auto state = sections();
    edit(state[0].layers[0]);
    const Status status = read(written(std::move(state)));
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("fc.weight"), HasSubstr("of bucket \"b0\": its "), HasSubstr(why)));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused([](LayerState& state) { state.scale = 0; }, "loss scale is 0 and should be from 2^-60 to 2^60");
  refused([&](LayerState& state) { state.scale = nan; }, "loss scale is nan");
  refused([](LayerState& state) { state.scale = 0x1p-61; }, "loss scale is 4.33680868994202e-19");
  refused([](LayerState& state) { state.scale = 0x1p61; }, "loss scale is 2.30584300921369e+18");
  refused([](LayerState& state) { state.alpha = -1; }, "alpha is -1 and should be finite and not below 0");
  refused([](LayerState& state) { state.threshold = -1; }, "threshold is -1");
  refused([](LayerState& state) { state.dispersion = 1.1; }, "dispersion is 1.1 and should be from 0 to 1");
  refused([](LayerState& state) { state.aimed = 1; }, "density is 1 and should be from 0 to below 1");
  refused([](LayerState& state) { state.threshold = std::numeric_limits<float>::infinity(); },
          "threshold is inf");
  refused(
      [](LayerState& state) {
        state.velocity.memory = std::make_shared<const std::vector<float>>(
            std::vector<float>{0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN(), 0});
      },
      "momentum is not finite");
  refused([&](LayerState& state) { state.squares = nan; }, "mean sum of squares is nan");
  refused([](LayerState& state) { state.mean_square = std::numeric_limits<double>::infinity(); },
          "mean square is inf");
  refused([](LayerState& state) { state.operations = UINT64_MAX; },
          "operations are 18446744073709551615 and should be at most 281474976710656");
  refused([](LayerState& state) { state.pieces[0].elements = 1; }, "pieces have 4 of its 5 elements");
  refused([](LayerState& state) { state.pieces[1].elements = UINT64_MAX; },
          "one has 18446744073709551615 behind 2");
  refused(
      [](LayerState& state) {
        state.residual.memory = std::make_shared<const std::vector<float>>(
            std::vector<float>{0, 0, 0, std::numeric_limits<float>::infinity(), 0});
      },
      "residual is not finite");
  auto empty = sections();
  empty[0].layers[3].elements = 0;
  EXPECT_EQ(read(written(std::move(empty))).code(), Code::kCorrupt) << "a layer of nothing";
  auto nameless = sections();
  nameless[0].layers[0].name = "two\nlines";
  EXPECT_EQ(read(written(std::move(nameless))).code(), Code::kCorrupt);
}

TEST(StateDamage, NamesThatAreNoTextAreShownAsTextAndAtTheirPlace) {
  for (const auto& [name, shown] : {std::pair("a\nb\x1b[31mred", "a?b?[31mred"), std::pair("\xff\xfe", "??"),
                                    std::pair("x\u202ey", "x?y")}) {
    const std::string said =
        std::string("its name, \"") + shown + "\", holds control characters or is not UTF-8";
    auto state = sections();
    state[0].layers[1].name = name;
    EXPECT_THAT(read(written(state)).message(),
                HasSubstr("in the head of layer 2 of bucket \"b0\": " + said));
    state = sections();
    state[0].bucket = name;
    EXPECT_THAT(read(written(state)).message(), HasSubstr("in the head of bucket 1: " + said));
    state = sections();
    state[2].bucket = name;
    EXPECT_THAT(read(written(state)).message(), HasSubstr("in the head of bucket 3: " + said));
  }
}

TEST(StateDamage, AWrongNumberOfLayersIsFoundAtTheEnd) {
  Bytes bytes = written(sections());
  store(bytes.data() + 24, uint64_t{6});
  put_crc(bytes, 0, 60);
  EXPECT_THAT(read(bytes).message(), HasSubstr("at its end: "));
}

TEST(StateDamage, AHeaderThatPromisesTooMuchCostsNothing) {
  const Bytes whole = written(sections());
  uint64_t asked = 0;
  StateReader careful([&](uint64_t bytes) {
    asked = bytes;
    return Status(Code::kResourceExhausted, "too much");
  });
  EXPECT_EQ(read(whole, careful, 1).code(), Code::kResourceExhausted);
  EXPECT_EQ(asked, whole.size() - 64 + 5 * sizeof(LayerState) + 3 * sizeof(StateSection));
  struct Promise {
    uint64_t payload, layers;
    uint32_t sections;
  };
  const uint64_t payload = whole.size() - 64;
  // Each by itself: bytes that overflow, and layers and buckets that do not fit into them.
  for (const Promise& promise :
       {Promise{UINT64_MAX, 5, 3}, Promise{UINT64_MAX / 4 + 1, 5, 3}, Promise{payload, payload / 77 + 1, 3},
        Promise{payload, 5, static_cast<uint32_t>(payload / 16 + 1)}}) {
    Bytes bytes = whole;
    store(bytes.data() + 16, promise.payload);
    store(bytes.data() + 24, promise.layers);
    store(bytes.data() + 40, promise.sections);
    put_crc(bytes, 0, 60);
    asked = 0;
    StateReader reader([&](uint64_t held) {
      asked = held;
      return ok_status();
    });
    EXPECT_THAT(read(bytes, reader).message(), HasSubstr("contradict")) << promise.payload;
    EXPECT_EQ(asked, 0u);
  }
  // A layer that would be longer than the whole state: refused before its name has come.
  Bytes bytes = whole;
  constexpr size_t kLayer = 64 + 12 + 2 + 4;
  store(bytes.data() + kLayer + 8, uint64_t{1} << 39);
  bytes.resize(kLayer + state_layout::kLayerBytes);
  EXPECT_THAT(read(bytes).message(), HasSubstr("549755813888 elements"));
}

}  // namespace
}  // namespace gradwire::compress
