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
