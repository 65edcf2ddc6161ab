// Operations that send what sparse codecs have held back.
#include <algorithm>
#include <string>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

OperationSettings flush_at(double scale) {
  OperationSettings flush = operation(ReduceOp::kSum, 1, scale);
  flush.flush = true;
  return flush;
}

// But for the loss scale, which they follow.
TEST(Flush, LeavesNormsAndThresholdsAlone) {
  for (const char* name : {"laco", "dropping"}) {
    for (const double scale : {1.0, 4.0}) {
      const BucketShape shape = shape_of({20000}, 1);
      LoopbackRing ring = compressed_ring(shape, codec(name, 0.01));
      RingBuffers buffers(shape, 1);
      buffers.gradients[0][0] = gauss(20000);
      for (int step = 0; step < 40; ++step) {
        ASSERT_TRUE(run_sum(ring, buffers));
      }
      const LayerState before = ring.node(0).describe_state(0, 1).at(0);
      EXPECT_EQ(before.threshold > 0, std::string(name) == "dropping");
      buffers.gradients[0][0] = gauss(20000, static_cast<float>(scale));
      ASSERT_TRUE(*ring.run(flush_at(scale), buffers.locals(), buffers.result_starts()));
      const LayerState after = ring.node(0).describe_state(0, 1).at(0);
      EXPECT_EQ(after.alpha, before.alpha) << name;
      EXPECT_EQ(after.squares, before.squares * scale * scale) << name;
      EXPECT_EQ(after.pieces.at(0).squares, before.pieces.at(0).squares * scale * scale) << name;
      EXPECT_EQ(after.threshold, before.threshold * static_cast<float>(scale)) << name;
      EXPECT_EQ(after.operations, before.operations + 1) << name;
      ASSERT_TRUE(run_sum(ring, buffers, scale));
      EXPECT_LT(ring.node(0).stats().density, 0.01) << name;
    }
  }
}

TEST(Flush, BeforeAStageOfTheWarmStartGivesItItsThreshold) {
  const BucketShape shape = shape_of({20000}, 1);
  LoopbackRing ring = compressed_ring(shape, codec("dropping", 0.001, 4));
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = gauss(20000);
  for (int step = 0; step < 7; ++step) {
    ASSERT_TRUE(run_sum(ring, buffers));
  }
  const float of_a_quarter = ring.node(0).describe_state(0, 1).at(0).threshold;
  ASSERT_TRUE(*ring.run(flush_at(1), buffers.locals(), buffers.result_starts()));
  EXPECT_EQ(ring.node(0).stats().warm_stage, 2U);
  EXPECT_GT(ring.node(0).describe_state(0, 1).at(0).threshold, 1.1F * of_a_quarter) << "6.25% are above it";
}

TEST(Flush, ThatComesFirstLeavesDroppingToItsOwnNorm) {
  const BucketShape shape = shape_of({20000}, 1);
  LoopbackRing ring = compressed_ring(shape, codec("dropping", 0.01));
  RingBuffers buffers(shape, 1);
  buffers.gradients[0][0] = gauss(20000);
  ASSERT_TRUE(*ring.run(flush_at(1), buffers.locals(), buffers.result_starts()));
  EXPECT_EQ(ring.node(0).describe_state(0, 1).at(0).threshold, 0) << "of no sample at all";
  ASSERT_TRUE(run_sum(ring, buffers));
  EXPECT_LT(ring.node(0).stats().density, 0.05);
}

}  // namespace
}  // namespace gradwire::compress
