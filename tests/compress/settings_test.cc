// What settings cost in memory, and which are refused.
#include <string>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

// What a reducer holds follows from what is in the bucket, not from how large a block could be.
TEST(HeldBytes, AreThoseOfTheLargestBlock) {
  EXPECT_EQ(held_bytes(shape_of({3000}, 2), std::vector{codec("laco")}), 8 * 3000 + 13 * 3000U);
  EXPECT_EQ(held_bytes(shape_of({100}, 2), std::vector{codec("laco")}),
            8 * 100U);  // as l8, which works without scratch
  EXPECT_EQ(held_bytes(shape_of({100}, 2), std::vector{codec("none")}), 0U);
  EXPECT_EQ(held_bytes(shape_of({100000, 100000}, 2), std::vector{codec("laco"), codec("topk")}),
            8 * 200000 + 13 * 65536U);
  CodecSettings momentum = codec("none");
  momentum.momentum = 0.9;
  EXPECT_EQ(held_bytes(shape_of({100}, 2), std::vector{momentum}), 8 * 100U);
}

TEST(HeldBytes, AreWhatTheReducerHolds) {
  for (const std::string_view name : codec_names()) {
    for (const bool direct : {false, true}) {
      for (const double momentum : {0.0, 0.5}) {
        BucketShape shape = shape_of({70000, 100, 5000}, 3);
        shape.direct = direct && name != "sign";
        CodecSettings settings = codec(std::string(name));
        settings.momentum = momentum;
        settings.clip_norm = momentum;
        const std::vector<CodecSettings> all(3, settings);
        const uint64_t held = make_compressor(shape, all).value()->stats().residual_bytes;
        const uint64_t most = held_bytes(shape, all);
        // Chunks end at multiples of 64 elements, and layers share scratch to sort samples in.
        const uint64_t slack = 4 * 3 * 64 + (name == "dropping" ? 4 * 5000 : 0);
        EXPECT_LE(held, most) << name << (direct ? ", direct" : "");
        EXPECT_GE(held + slack, most) << name << (direct ? ", direct" : "");
      }
    }
  }
}

TEST(Settings, ThatNoCodecHasAreRefused) {
  CodecSettings settings = codec("l8");
  settings.steps_per_octave = 12;
  const auto refused = make_compressor(shape_of({64}, 2), std::vector{settings});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("12 is neither 8 nor 16"), std::string::npos);
}

TEST(Settings, ThatChangeTheBytesChangeTheVariant) {
  CodecSettings settings = codec("l8");
  const auto coarse = make_compressor(shape_of({64}, 2), std::vector{settings}).value()->wire_variant();
  settings.steps_per_octave = 16;
  EXPECT_NE(make_compressor(shape_of({64}, 2), std::vector{settings}).value()->wire_variant(), coarse);
}

}  // namespace
}  // namespace gradwire::compress
