// What is made of the gradients before they are summed: momentum correction, norms of their own, sparse rows.
#include <cmath>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

TEST(Momentum, OfAnExactLayerIsThatOfTheOptimiser) {
  const BucketShape shape = shape_of({100, 50}, 2);
  std::vector<CodecSettings> settings(2, codec("none"));
  settings[0].momentum = 0.5;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 2);
  buffers.fill([] { return 1.0F; });
  for (const float expected : {4.0F, 6.0F, 7.0F, 7.5F}) {
    ASSERT_TRUE(run_sum(ring, buffers));
    EXPECT_EQ(buffers.results[0][99], expected);
    EXPECT_EQ(buffers.results[0][100], 4.0F);
  }
}

TEST(Momentum, DoesNotMoveWhereTheStepIsNotFinite) {
  const BucketShape shape = shape_of({100}, 2);
  CodecSettings settings = codec("none");
  settings.momentum = 0.5;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  buffers.fill([] { return 1.0F; });
  ASSERT_TRUE(run_sum(ring, buffers));
  buffers.gradients[0][0][5] = INFINITY;
  EXPECT_FALSE(run_sum(ring, buffers));
  buffers.fill([] { return 1.0F; });
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(buffers.results[0][0], 3.0F);
}

TEST(Momentum, FollowsTheLossScale) {
  const BucketShape shape = shape_of({100}, 1);
  CodecSettings settings = codec("l8");
  settings.momentum = 0.5;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  buffers.fill([] { return 1.0F; });
  ASSERT_TRUE(run_sum(ring, buffers, 1));
  buffers.fill([] { return 4.0F; });
  ASSERT_TRUE(run_sum(ring, buffers, 4));
  EXPECT_NEAR(buffers.results[0][0], 6.0F, 0.3F);
}

// Where a sparse block sends, the momentum starts anew; elsewhere it goes on.
TEST(Momentum, IsForgottenWhereItWasSent) {
  const BucketShape shape = shape_of({4096}, 1);
  CodecSettings settings = codec("topk", 1.0 / 4096);
  settings.momentum = 0.5;
  settings.dense_below = 0;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  auto& gradient = buffers.gradients[0][0];
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  gradient[10] = 8;  // is sent
  gradient[20] = 4;  // stays
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_EQ(buffers.results[0][10], 8.0F);
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_NEAR(buffers.results[0][20], 6.0F, 0.3F);  // 4, and half of it again
  EXPECT_EQ(buffers.results[0][10], 0.0F);
}

// Elements that the first and the last encoding of a chunk send, in the mean of many steps.
std::pair<double, double> sent_along_the_ring(const CodecSettings& settings, uint32_t nodes) {
  const BucketShape shape = shape_of({uint64_t{65536} * nodes}, nodes);
  LoopbackRing ring = compressed_ring(shape, settings);
  double first = 0;
  double last = 0;
  ring.observe_hops([&](uint32_t hop, size_t bytes) {
    first += hop == 0 ? static_cast<double>(bytes) : 0;
    last += hop + 1 == nodes ? static_cast<double>(bytes) : 0;
  });
  RingBuffers buffers(shape, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 120; ++step) {
    first = step == 60 ? 0 : first;
    last = step == 60 ? 0 : last;
    buffers.fill([&] { return normal(random); });
    EXPECT_TRUE(run_sum(ring, buffers));
  }
  return {first, last};
}

// With a threshold that is the same in every hop a chunk fills in on its way: the last hop sends three times
// as much as the first. The factor takes most of that back.
TEST(NormOfTheGradient, GrowsAlongTheRing) {
  CodecSettings settings = codec("laco", 0.02);
  settings.norm_of = NormOf::kGradient;
  const auto [first, last] = sent_along_the_ring(settings, 8);
  EXPECT_LT(last, 2.2 * first);
  EXPECT_GT(last, first);
}

// A table of which one row in a hundred has a gradient: its norm is that of these rows.
TEST(SparseRows, SetTheThresholdByTheRowsThatAreTouched) {
  const BucketShape shape = shape_of({64 * 1000}, 1);
  for (const bool rows : {false, true}) {
    CodecSettings settings = codec("lads", 0.001);
    settings.sparse_rows = rows;
    settings.norm = NormChoice::kCurrent;
    settings.density_cap = 1000;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    size_t at = 0;
    buffers.fill([&] { return at++ / 64 % 100 == 0 ? normal(random) : 0.0F; });
    ASSERT_TRUE(run_sum(ring, buffers));
    const auto sent =
        std::count_if(buffers.results[0].begin(), buffers.results[0].end(), [](float x) { return x != 0; });
    if (rows) {
      EXPECT_NEAR(static_cast<double>(sent), 640 * 0.089, 25);  // above 1.7 standard deviations
    } else {
      EXPECT_GT(sent, 500);  // a tenth of the deviation is not much of a threshold
    }
  }
}

double norm_of(const std::vector<float>& values, size_t from, size_t count) {
  double squares = 0;
  for (size_t i = from; i < from + count; ++i) {
    squares += static_cast<double>(values[i]) * values[i];
  }
  return std::sqrt(squares);
}

// Two nodes of two ranks; the first node's gradients are large.
TEST(Clipping, HoldsWhatANodeAddsToTheResult) {
  for (const char* const name : {"none", "lads"}) {
    SCOPED_TRACE(name);
    const BucketShape shape = shape_of({6000, 50}, 2);
    std::vector<CodecSettings> settings(2, codec(name, 1.0));
    settings[0].clip_norm = 3;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 2);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    buffers.fill([&] { return normal(random); });
    for (auto& gradient : buffers.gradients[1]) {
      std::fill(gradient.begin(), gradient.end(), 0.0F);
    }
    const auto locals = buffers.locals();
    ASSERT_TRUE(*ring.run(operation(ReduceOp::kAverage, 4), locals, buffers.result_starts()));
    EXPECT_NEAR(norm_of(buffers.results[0], 0, 6000), 3 / std::sqrt(2.0), 1e-5);
    const double ratio = buffers.results[0][7] / (buffers.gradients[0][0][7] + buffers.gradients[0][1][7]);
    for (const size_t i : {0, 100, 2000}) {  // of one block
      EXPECT_NEAR(buffers.results[0][i] / (buffers.gradients[0][0][i] + buffers.gradients[0][1][i]), ratio,
                  1e-6 * ratio)
          << "the direction stays";
    }
    EXPECT_EQ(buffers.results[0][6001], (buffers.gradients[0][0][6001] + buffers.gradients[0][1][6001]) / 4);
    // At another loss scale, and as a sum.
    buffers.fill([&] { return 8 * normal(random); });
    ASSERT_TRUE(*ring.run(operation(ReduceOp::kSum, 4, 8), locals, buffers.result_starts()));
    EXPECT_LE(norm_of(buffers.results[0], 0, 6000), 8 * 2 * 3 / std::sqrt(2.0) * 1.0001);
    EXPECT_GT(norm_of(buffers.results[0], 0, 6000), 8.0 * 3 * 0.9) << "of independent gradients";
  }
}

TEST(Clipping, LeavesWhatIsWithinTheBoundAsItIs) {
  const BucketShape shape = shape_of({5000, 20000}, 3);
  CodecSettings settings = codec("l8");
  LoopbackRing plain = compressed_ring(shape, settings);
  settings.clip_norm = 1000;
  LoopbackRing clipped = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  buffers.fill([&] { return normal(random); });
  ASSERT_TRUE(run_sum(plain, buffers));
  const std::vector<float> expected = buffers.results[0];
  ASSERT_TRUE(run_sum(clipped, buffers));
  EXPECT_EQ(buffers.results[0], expected);
}

TEST(Clipping, HoldsEveryBlockToItsShare) {
  const BucketShape shape = shape_of({4 * 4096}, 1);
  CodecSettings settings = codec("bf16");
  settings.clip_norm = 2;
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 1);
  size_t at = 0;
  buffers.fill([&] { return at++ < 4096 ? 1.0F : 1e-3F; });
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_NEAR(norm_of(buffers.results[0], 0, 4096), 1, 0.01) << "a quarter of the elements: half of the norm";
  EXPECT_NEAR(buffers.results[0][4096], 1e-3F, 1e-5F);
}

TEST(Clipping, ComesBeforeTheMomentum) {
  const BucketShape shape = shape_of({100}, 1);
  for (const char* const name : {"none", "l8"}) {
    CodecSettings settings = codec(name);
    settings.clip_norm = 10;
    settings.momentum = 0.5;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    buffers.fill([] { return 1e6F; });
    for (const double expected : {1.0, 1.5, 1.75}) {
      ASSERT_TRUE(run_sum(ring, buffers));
      EXPECT_NEAR(buffers.results[0][99], expected, 0.09);
    }
  }
}

TEST(Clipping, DoesNotHideWhatIsNotFinite) {
  const BucketShape shape = shape_of({100}, 2);
  for (const float bad : {INFINITY, NAN}) {
    CodecSettings settings = codec("laco");
    settings.clip_norm = 1;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    buffers.fill([] { return 1.0F; });
    buffers.gradients[1][0][3] = bad;
    EXPECT_FALSE(run_sum(ring, buffers));
  }
}

TEST(Clipping, MemoryIsCounted) {
  const BucketShape shape = shape_of({200000, 5000}, 1);
  std::vector<CodecSettings> settings(2, codec("none"));
  EXPECT_EQ(held_bytes(shape, settings), 0U);
  settings[1].clip_norm = 1;
  EXPECT_EQ(held_bytes(shape, settings), 4U * 5000);
  settings[0].clip_norm = 1;
  EXPECT_EQ(held_bytes(shape, settings), 4U * 65536);
  settings[0].clip_norm = -1;
  EXPECT_NE(make_compressor(shape, settings).status().message().find("use 0 to clip nothing"),
            std::string::npos);
}

TEST(Settings, OfMomentumAndPlaceAreChecked) {
  CodecSettings settings = codec("l8");
  settings.momentum = 1;
  EXPECT_NE(make_compressor(shape_of({64}, 2), std::vector{settings}).status().message().find("below 1"),
            std::string::npos);
  BucketShape shape = shape_of({64}, 2);
  shape.node = 2;
  EXPECT_NE(make_compressor(shape, std::vector{codec("l8")}).status().message().find("does not exist"),
            std::string::npos);
}

}  // namespace
}  // namespace gradwire::compress
