// What every codec of the table promises, and what each of them computes.
#include "compress/bucket_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

std::vector<std::string> all_codecs() {
  std::vector<std::string> names;
  for (const std::string_view name : codec_names()) {
    names.emplace_back(name);
  }
  return names;
}

CodecSettings small_too(std::string name, double density = 0.05) {
  CodecSettings settings = codec(std::move(name), density);
  settings.dense_below = 0;
  return settings;
}

double largest_residual(LoopbackRing& ring) {
  double largest = 0;
  for (size_t n = 0; n < ring.size(); ++n) {
    for (const float value : ring.node(n).residual()) {
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
  }
  return largest;
}

class CodecTable : public testing::TestWithParam<std::string> {};

TEST_P(CodecTable, GivesAllNodesTheSameBitsForAwkwardInputs) {
  const float least = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max() / 16;
  const std::vector<std::vector<float>> kinds = {
      {0.0F}, {-0.0F}, {-1.0F, -2.5F}, {least, -least}, {most, -most}, {1.0F, 1e-30F}, {1e-38F, 3e-39F}};
  for (const auto& kind : kinds) {
    for (const uint32_t nodes : {1U, 2U, 3U}) {
      const BucketShape shape = shape_of({0, 1, 2, 31, 33, 257, 4099}, nodes);
      LoopbackRing ring = compressed_ring(shape, small_too(GetParam()));
      RingBuffers buffers(shape, 1);
      size_t next = 0;
      buffers.fill([&] { return kind[next++ % kind.size()]; });
      for (int step = 0; step < 3; ++step) {
        ASSERT_TRUE(run_sum(ring, buffers)) << kind[0];
        for (const float value : buffers.results[0]) {
          ASSERT_TRUE(std::isfinite(value)) << kind[0];
        }
      }
    }
  }
}

TEST_P(CodecTable, TellsAnInfinityAndKeepsItsResidual) {
  for (const ResidualType type : {ResidualType::kFloat32, ResidualType::kBfloat16}) {
    const BucketShape shape = shape_of({5000}, 2);
    CodecSettings settings = small_too(GetParam());
    settings.residuals = type;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    buffers.fill(Gauss(3));
    ASSERT_TRUE(run_sum(ring, buffers));
    const auto kept = [&ring] {
      std::vector<float> values(ring.node(0).kept_floats());
      ring.node(0).copy_kept(0, values);
      return values;
    };
    const std::vector<float> before = kept();
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      buffers.gradients[1][0][4321] = bad;
      EXPECT_FALSE(run_sum(ring, buffers));
      EXPECT_EQ(kept(), before);
    }
  }
}

// Elements that never have a gradient, beside some that do: what they are sent must not pile up.
TEST_P(CodecTable, KeepsTheResidualOfAConstantZeroBounded) {
  const BucketShape shape = shape_of({64 * 9}, 3);
  LoopbackRing ring = compressed_ring(shape, small_too(GetParam()));
  RingBuffers buffers(shape, 1);
  size_t at = 0;
  buffers.fill([&] { return at++ % 3 == 0 ? 1.0F : 0.0F; });
  double early = 0;
  for (int step = 1; step <= 10000; ++step) {
    ASSERT_TRUE(run_sum(ring, buffers));
    if (step == 1000) {
      early = largest_residual(ring);
    }
  }
  EXPECT_LE(largest_residual(ring), 2 * early + 1);
}

TEST_P(CodecTable, MovesNothingWhereNobodyHasAGradient) {
  const BucketShape shape = shape_of({4096 * 3}, 2);
  LoopbackRing ring = compressed_ring(shape, small_too(GetParam()));
  RingBuffers buffers(shape, 2);
  buffers.fill([] { return 0.0F; });
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_TRUE(
      std::all_of(buffers.results[0].begin(), buffers.results[0].end(), [](float x) { return x == 0; }));
  EXPECT_EQ(largest_residual(ring), 0);
}

TEST_P(CodecTable, LosesWhatItDoesNotSendWithoutErrorFeedback) {
  const BucketShape shape = shape_of({5000}, 2);
  CodecSettings settings = small_too(GetParam());
  settings.error_feedback = false;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  buffers.fill([&] { return normal(random); });
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(largest_residual(ring), 0);
  EXPECT_EQ(ring.node(0).stats().residual_norm, 0);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecTable, testing::ValuesIn(all_codecs()),
                         [](const auto& name) { return name.param; });

struct Relative {
  double worst = 0;
  double rms = 0;
};

// |D(Q(x)) - x| / |x| of one node, without residuals of steps before.
Relative error_of(const CodecSettings& settings, const std::vector<float>& values) {
  const BucketShape shape = shape_of({values.size()}, 1);
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = values;
  EXPECT_TRUE(run_sum(ring, buffers));
  Relative error;
  double squares = 0;
  double energy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = std::abs(static_cast<double>(buffers.results[0][i]) - static_cast<double>(values[i]));
    error.worst = std::max(error.worst, off / std::abs(static_cast<double>(values[i])));
    squares += off * off;
    energy += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  error.rms = std::sqrt(squares / energy);
  return error;
}

TEST(Fp16, HasElevenBitsWhateverTheScale) {
  for (const float sigma : {1.0F, 1e-20F, 1e20F}) {
    EXPECT_LT(error_of(codec("fp16"), gauss(20000, sigma)).rms, 3e-4) << sigma;
  }
}

TEST(Codecs, KeepTheLargestFloatsFinite) {
  const float most = std::numeric_limits<float>::max();
  for (const std::string& name : all_codecs()) {
    const BucketShape shape = shape_of({5000}, 1);
    LoopbackRing ring = compressed_ring(shape, small_too(name));
    RingBuffers buffers(shape, 1);
    size_t next = 0;
    buffers.fill([&] { return next++ % 2 == 0 ? most : -most; });
    ASSERT_TRUE(run_sum(ring, buffers)) << name;
    for (const float value : buffers.results[0]) {
      ASSERT_TRUE(std::isfinite(value)) << name;
    }
    EXPECT_TRUE(std::isfinite(largest_residual(ring))) << name;
  }
}

TEST(Bf16, HasEightBits) {
  EXPECT_LT(error_of(codec("bf16"), gauss(20000)).worst, 1.0 / 256);
}

TEST(Int8, IsMorePreciseThanL8OnWellScaledGradients) {
  const double int8 = error_of(codec("int8"), gauss(40960)).rms;
  EXPECT_LT(int8, 0.008);
  EXPECT_LT(int8, error_of(codec("l8"), gauss(40960)).rms);
}

TEST(Int4, HasTheErrorOfFourBits) {
  const double int4 = error_of(codec("int4"), gauss(40960)).rms;
  EXPECT_GT(int4, 0.05);
  EXPECT_LT(int4, 0.12);
}

TEST(L8, HasHalfTheErrorWithSixteenSteps) {
  CodecSettings fine = codec("l8");
  fine.steps_per_octave = 16;
  std::vector<float> values;
  for (uint32_t mantissa = 0; mantissa < 0x800000; mantissa += 7) {
    values.push_back(std::bit_cast<float>(mantissa | 127U << 23));
  }
  const Relative coarse = error_of(codec("l8"), values);
  const Relative halved = error_of(fine, values);
  EXPECT_LT(coarse.worst, 0.0443);
  EXPECT_LT(halved.worst, 0.0220);
  EXPECT_LT(halved.rms, 0.0126);
}

TEST(OneBit, SendsSignsAtTheMeanMagnitude) {
  const BucketShape shape = shape_of({4}, 1);
  LoopbackRing ring = compressed_ring(shape, codec("onebit"));
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = {1, -3, 2, -2};
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(buffers.results[0], (std::vector<float>{2, -2, 2, -2}));
  const auto left = ring.node(0).residual();
  EXPECT_EQ(std::vector<float>(left.begin(), left.end()), (std::vector<float>{-1, -1, 0, 0}));
}

TEST(Sign, FollowsTheMajorityAtTheSumOfTheMagnitudes) {
  const BucketShape shape = shape_of({4}, 3);
  LoopbackRing ring = compressed_ring(shape, codec("sign"));
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = {1, 1, -1, -1};
  buffers.gradients[1][0] = {2, -2, 2, -2};
  buffers.gradients[2][0] = {-3, 3, 3, -3};
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(buffers.results[0], (std::vector<float>{6, 6, 6, -6}));
}

TEST(Sign, FavoursNoSideInATie) {
  const BucketShape shape = shape_of({1000}, 2);
  LoopbackRing ring = compressed_ring(shape, codec("sign"));
  RingBuffers buffers(shape, 1);
  std::fill(buffers.gradients[0][0].begin(), buffers.gradients[0][0].end(), 1.0F);
  std::fill(buffers.gradients[1][0].begin(), buffers.gradients[1][0].end(), -1.0F);
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(std::count(buffers.results[0].begin(), buffers.results[0].end(), 2.0F), 500);
}

TEST(Sign, CountsTheVotesOfAtMost255Nodes) {
  const CodecSettings settings = codec("sign");
  EXPECT_TRUE(make_compressor(shape_of({64}, 255), std::vector{settings}).ok());
  const auto refused = make_compressor(shape_of({64}, 256), std::vector{settings});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("255"), std::string::npos);
}

TEST(Sign, SendsFewerBytesThanFloatsByTheWidthOfItsCounts) {
  const BucketShape shape = shape_of({8 * 4096 * 8}, 8);
  LoopbackRing ring = compressed_ring(shape, codec("sign"));
  RingBuffers buffers(shape, 1);
  uint64_t finished = 0;
  ring.observe([&](const Segment&, std::span<const std::byte> bytes) { finished += bytes.size(); });
  const auto values = gauss(elements_of(shape));
  for (auto& node : buffers.gradients) {
    node[0] = values;
  }
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(finished, elements_of(shape) / 8 + 5 * elements_of(shape) / 4096);
}

Code decoded(const CodecSettings& settings, uint32_t nodes, uint64_t elements, std::vector<uint8_t> bytes) {
  const auto reducer = make_compressor(shape_of({elements}, nodes), std::vector{settings}).value();
  std::vector<float> result(elements);
  EXPECT_TRUE(reducer->begin(operation(ReduceOp::kSum, nodes)).ok());
  const Segment& segment = reducer->geometry().segments(0)[0];
  EXPECT_EQ(segment.elements, elements);
  return reducer->decode(segment, std::as_bytes(std::span(bytes)), result.data()).code();
}

TEST(Decoders, RefuseWhatNoSenderWrites) {
  // sign: voters, magnitude 1.0, one bit each for eight elements.
  EXPECT_EQ(decoded(codec("sign"), 1, 8, {1, 0, 0, 0x80, 0x3f, 0xa5}), Code::kOk);
  EXPECT_EQ(decoded(codec("sign"), 1, 8, {2, 0, 0, 0x80, 0x3f, 0x11, 0x11}), Code::kCorrupt);  // not finished
  EXPECT_EQ(decoded(codec("sign"), 1, 8, {1, 0, 0, 0x80, 0xbf, 0xa5}), Code::kCorrupt);
  EXPECT_EQ(decoded(codec("sign"), 1, 7, {1, 0, 0, 0x80, 0x3f, 0xa5}), Code::kCorrupt);  // a bit too many
  EXPECT_EQ(decoded(codec("fp16"), 1, 1, {141, 0x00, 0x3c}), Code::kOk);
  EXPECT_EQ(decoded(codec("fp16"), 1, 1, {13, 0x00, 0x3c}), Code::kCorrupt);
  EXPECT_EQ(decoded(codec("fp16"), 1, 1, {141, 0x00, 0x7c}), Code::kCorrupt);  // Inf
  EXPECT_EQ(decoded(codec("fp16"), 1, 1, {254, 0x00, 0x78}), Code::kCorrupt);  // 2^128
  EXPECT_EQ(decoded(codec("bf16"), 1, 1, {0x80, 0x7f}), Code::kCorrupt);
  EXPECT_EQ(decoded(codec("int8"), 1, 1, {0, 0, 0x80, 0x3f, 0x81}), Code::kOk);
  EXPECT_EQ(decoded(codec("int8"), 1, 1, {0, 0, 0x80, 0x3f, 0x80}), Code::kCorrupt);  // -128
  EXPECT_EQ(decoded(codec("int8"), 1, 1, {0xff, 0xff, 0x7f, 0x7f, 1}), Code::kCorrupt);
  EXPECT_EQ(decoded(codec("int4"), 1, 2, {0x80, 0x3f, 0x79}), Code::kOk);
  EXPECT_EQ(decoded(codec("int4"), 1, 2, {0x80, 0x3f, 0x78}), Code::kCorrupt);  // -8
  EXPECT_EQ(decoded(codec("onebit"), 1, 3, {0, 0, 0x80, 0x3f, 0x08}), Code::kCorrupt);
}

TEST(Sign, RefusesMoreVotersThanNodes) {
  const auto reducer = make_compressor(shape_of({8}, 1), std::vector{codec("sign")}).value();
  ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 1)).ok());
  const std::vector<float> gradient(8, 1.0F);
  const void* const local = gradient.data();
  const Segment& segment = reducer->geometry().segments(0)[0];
  std::vector<std::byte> out(segment.max_bytes);
  const std::vector<uint8_t> arrived = {1, 0, 0, 0x80, 0x3f, 0xff};
  EXPECT_EQ(reducer->hop(segment, std::as_bytes(std::span(arrived)), {&local, 1}, out.data()).status().code(),
            Code::kCorrupt);
}

TEST(TopK, SendsTheLargestOfEveryBlock) {
  const BucketShape shape = shape_of({65536 + 10000}, 1);
  LoopbackRing ring = compressed_ring(shape, codec("topk", 0.01));
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = gauss(elements_of(shape));
  ASSERT_TRUE(run_sum(ring, buffers));
  const auto& values = buffers.gradients[0][0];
  const auto& sent = buffers.results[0];
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 65536}, {65536, 10000}}) {
    float least_sent = std::numeric_limits<float>::max();
    float most_kept = 0;
    size_t number = 0;
    for (size_t i = first; i < first + count; ++i) {
      number += sent[i] != 0 ? 1 : 0;
      (sent[i] != 0 ? least_sent : most_kept) =
          sent[i] != 0 ? std::min(least_sent, std::abs(values[i])) : std::max(most_kept, std::abs(values[i]));
    }
    EXPECT_EQ(number, (count + 99) / 100);
    EXPECT_GE(least_sent, most_kept);
  }
}

double settled_density(const BucketShape& shape, const std::vector<CodecSettings>& settings, int steps,
                       const std::vector<float>& scales) {
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  double density = 0;
  for (int step = 0; step < steps; ++step) {
    for (auto& node : buffers.gradients) {
      size_t at = 0;
      for (size_t l = 0; l < shape.layers.size(); ++l) {
        for (uint64_t i = 0; i < shape.layers[l].elements; ++i) {
          node[0][at++] = scales[l] * normal(random);
        }
      }
    }
    EXPECT_TRUE(run_sum(ring, buffers));
    density += step >= steps / 2 ? ring.node(0).stats().density : 0;
  }
  return density / (steps - steps / 2);
}

TEST(Dropping, KeepsItsDensityBySamples) {
  const BucketShape shape = shape_of({100000}, 1);
  EXPECT_NEAR(settled_density(shape, {codec("dropping", 0.01)}, 60, {1}), 0.01, 0.003);
}

TEST(Dropping, WithTheBucketsThresholdSendsWhereTheGradientIs) {
  const BucketShape shape = shape_of({40000, 40000, 40000}, 1);
  CodecSettings settings = codec("dropping", 0.02);
  settings.edge_density_factor = 1;
  settings.scope = ThresholdScope::kBucket;
  settings.density_cap = 100;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  const auto values = gauss(elements_of(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    buffers.gradients[0][0][i] = values[i] * (i < 40000 ? 1.0F : 1e-3F);
  }
  ASSERT_TRUE(run_sum(ring, buffers));
  ASSERT_TRUE(run_sum(ring, buffers));
  const auto& sent = buffers.results[0];
  EXPECT_GT(std::count_if(sent.begin(), sent.begin() + 40000, [](float x) { return x != 0; }), 1000);
  EXPECT_EQ(std::count_if(sent.begin() + 40000, sent.end(), [](float x) { return x != 0; }), 0);
}

// The edge layers' own factor weighs by their elements.
TEST(Dropping, WithTheBucketsThresholdKeepsTheDensityOfTheWhole) {
  const BucketShape shape = shape_of({10000, 100000, 10000}, 1);
  CodecSettings settings = codec("dropping", 0.01);
  settings.scope = ThresholdScope::kBucket;
  const double aimed = (2 * 10000 * 0.04 + 100000 * 0.01) / 120000;
  EXPECT_NEAR(settled_density(shape, {settings, settings, settings}, 60, {1, 1, 1}), aimed, 0.003);
}

// Beyond 2^29 elements a sample of 65,536 would take less than one element of a block.
TEST(Dropping, HasASampleOfEveryBlockHoweverLargeTheLayer) {
  for (uint64_t elements = 1; elements <= uint64_t{1} << 40; elements = 3 * elements + 1) {
    const uint32_t stride = sample_stride(elements);
    ASSERT_GE(stride, kSampleStride);
    ASSERT_LE(stride, kSparseRawBlock) << elements;
    ASSERT_LE(most_samples(elements), std::max(kMostSamples, elements / kSparseRawBlock));
    ASSERT_GE(most_samples(elements), std::min(elements / kSampleStride, kMostSamples - 1) / 2);
  }
  EXPECT_EQ(sample_stride((uint64_t{1} << 29) + 1), kSparseRawBlock);
}

TEST(Dropping, SortsNoMoreSamplesForALargeLayerThanForASmallerOne) {
  const std::vector<CodecSettings> settings = {codec("dropping", 0.01)};
  const uint64_t elements = 4'000'000;
  EXPECT_EQ(held_bytes(shape_of({elements}, 1), settings),
            8 * elements + 2 * 4 * (elements / 62) + 12 * 8192);
}

}  // namespace
}  // namespace gradwire::compress
