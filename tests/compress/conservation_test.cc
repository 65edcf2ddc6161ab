// What was applied plus all residuals is all gradients, for every codec, over many random steps.
#include <cmath>
#include <limits>

#include "compress/codecs/codec.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

// Accumulates gradients, results and the bound in fp64, element by element.
class Ledger {
 public:
  explicit Ledger(uint64_t elements) : gradients_(elements), applied_(elements), bound_(elements) {}

  void record(LoopbackRing& ring, const RingBuffers& buffers) {
    for (size_t i = 0; i < applied_.size(); ++i) {
      double magnitude = std::abs(static_cast<double>(buffers.results[0][i]));
      for (const auto& node : buffers.gradients) {
        for (const auto& gradient : node) {
          gradients_[i] += static_cast<double>(gradient[i]);
          magnitude += std::abs(static_cast<double>(gradient[i]));
        }
      }
      for (size_t n = 0; n < ring.size(); ++n) {
        const auto residual = ring.node(n).residual();
        magnitude += residual.empty() ? 0 : std::abs(static_cast<double>(residual[i]));
      }
      applied_[i] += static_cast<double>(buffers.results[0][i]);
      // No |S| of the step is above the sum of all that went into it. This overestimates sum|S| over all
      // encodes by up to about four, so check() allows one epsilon of it where four of the true sum are due.
      bound_[i] += static_cast<double>(ring.size()) * magnitude;
    }
  }

  void check(LoopbackRing& ring) const {
    const double eps = std::numeric_limits<float>::epsilon();
    for (size_t i = 0; i < applied_.size(); ++i) {
      double held = applied_[i];
      for (size_t n = 0; n < ring.size(); ++n) {
        const auto residual = ring.node(n).residual();
        held += residual.empty() ? 0 : static_cast<double>(residual[i]);
      }
      ASSERT_NEAR(held, gradients_[i], eps * bound_[i] + 1e-30) << "element " << i;
    }
  }

 private:
  std::vector<double> gradients_;
  std::vector<double> applied_;
  std::vector<double> bound_;
};

void expect_conservation(const BucketShape& shape, const std::vector<CodecSettings>& settings, int steps,
                         uint32_t ranks_per_node, uint32_t seed) {
  LoopbackRing ring = compressed_ring(shape, settings);
  RingBuffers buffers(shape, ranks_per_node);
  Ledger ledger(elements_of(shape));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int step = 0; step < steps; ++step) {
    buffers.fill([&] { return normal(random); });
    const auto done =
        ring.run(operation(ReduceOp::kSum, buffers.ranks()), buffers.locals(), buffers.result_starts());
    ASSERT_TRUE(done.ok()) << done.status().message();
    ASSERT_TRUE(*done);
    ASSERT_TRUE(buffers.results_equal()) << "step " << step;
    ledger.record(ring, buffers);
  }
  ledger.check(ring);
}

class Conservation : public testing::TestWithParam<std::string> {};

TEST_P(Conservation, HoldsOverAThousandStepsForEveryNumberOfNodes) {
  for (uint32_t nodes = 1; nodes <= 8; ++nodes) {
    const BucketShape shape = shape_of({0, 1, 3, 77, 2049}, nodes);
    const int steps = nodes <= 3 || nodes == 8 ? 1000 : 150;
    expect_conservation(shape, std::vector<CodecSettings>(shape.layers.size(), codec(GetParam(), 0.02, 30)),
                        steps, 1 + nodes % 2, nodes);
  }
}

TEST_P(Conservation, HoldsForLargeLayersAroundABlock) {
  const BucketShape shape = shape_of({65535, 1, 65536, 65537}, 2, 70000);
  expect_conservation(shape, std::vector<CodecSettings>(shape.layers.size(), codec(GetParam(), 0.01, 1)), 12,
                      1, 5);
}

class HopCodecs : public testing::TestWithParam<std::string> {};

TEST_P(HopCodecs, ConserveForEveryNumberOfNodes) {
  for (uint32_t nodes = 1; nodes <= 8; ++nodes) {
    const BucketShape shape = shape_of({0, 1, 3, 77, 2049, 4097}, nodes);
    CodecSettings settings = codec(GetParam(), 0.02, 10);
    settings.steps_per_octave = 16;
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      settings.rounding = rounding;
      expect_conservation(shape, std::vector<CodecSettings>(shape.layers.size(), settings), 30, 1 + nodes % 2,
                          nodes);
    }
  }
}

TEST_P(HopCodecs, ConserveWhereSharesGoStraightToTheirOwners) {
  for (uint32_t nodes = 1; nodes <= 8; ++nodes) {
    BucketShape shape = shape_of({0, 1, 3, 77, 2049, 4097}, nodes);
    shape.direct = true;
    CodecSettings settings = codec(GetParam(), 0.02, 10);
    settings.rounding = nodes % 2 == 0 ? Rounding::kNearest : Rounding::kStochastic;
    expect_conservation(shape, std::vector<CodecSettings>(shape.layers.size(), settings), 60, 1 + nodes % 2,
                        nodes);
  }
}

std::vector<std::string> hop_codecs() {
  std::vector<std::string> names;
  for (const CodecRow& row : codec_table()) {
    if (row.kind == CodecKind::kHop) {
      names.emplace_back(row.name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, HopCodecs, testing::ValuesIn(hop_codecs()),
                         [](const auto& codec_name) { return codec_name.param; });

INSTANTIATE_TEST_SUITE_P(Codecs, Conservation, testing::Values("none", "l8", "lads", "laco"),
                         [](const auto& codec_name) { return codec_name.param; });

TEST(MixedBucket, ConservesWithEveryCodecInOneBucket) {
  const BucketShape shape = shape_of({100, 3000, 0, 1, 5000, 7, 4097, 20000, 3, 9000}, 4);
  const std::vector<CodecSettings> settings = {
      codec("none"), codec("lads", 0.05), codec("l8"),         codec("l8"),   codec("laco", 0.01),
      codec("lads"), codec("l8"),         codec("lads", 0.01), codec("laco"), codec("laco", 0.1)};
  expect_conservation(shape, settings, 200, 2, 7);
  EXPECT_EQ(compressed_ring(shape, settings).node(0).codec_name(), "mixed");
}

}  // namespace
}  // namespace gradwire::compress
