// The rules around the codecs: not-finite steps, caps, densities, warm start, change of scale, refusals.
#include <cmath>
#include <limits>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

using Messages = std::vector<std::vector<std::byte>>;

void collect(LoopbackRing& ring, Messages& messages) {
  ring.observe([&messages](const Segment&, std::span<const std::byte> bytes) {
    messages.emplace_back(bytes.begin(), bytes.end());
  });
}

void run_step(LoopbackRing& ring, RingBuffers& buffers, double scale = 1.0, bool expect_commit = true) {
  const auto done =
      ring.run(operation(ReduceOp::kSum, buffers.ranks(), scale), buffers.locals(), buffers.result_starts());
  ASSERT_TRUE(done.ok()) << done.status().message();
  ASSERT_EQ(*done, expect_commit);
}

// Mean density of the first node over the last `measured` of `steps` operations with Gaussian gradients.
double steady_density(LoopbackRing& ring, const BucketShape& shape, int steps, int measured) {
  RingBuffers buffers(shape, 1);
  std::mt19937 random(21);
  std::normal_distribution<float> normal(0.0F, 1e-3F);
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    buffers.fill([&] { return normal(random); });
    run_step(ring, buffers);
    sum += step >= steps - measured ? ring.node(0).stats().density : 0;
  }
  return sum / measured;
}

class EveryCodec : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, testing::Values("none", "l8", "lads", "laco"),
                         [](const auto& codec_name) { return codec_name.param; });

TEST_P(EveryCodec, ANotFiniteStepLeavesEverythingAsItWas) {
  const BucketShape shape = shape_of({5000, 3, 2500, 70000, 100}, 3);
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
    for (const uint64_t where : {1ULL, 5001ULL, 60000ULL, 77550ULL}) {
      LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.02, 2));
      LoopbackRing twin = compressed_ring(shape, codec(GetParam(), 0.02, 2));
      Messages messages;
      Messages twin_messages;
      RingBuffers buffers(shape, 2);
      std::mt19937 random(4);
      std::normal_distribution<float> normal;
      for (int step = 0; step < 6; ++step) {
        buffers.fill([&] { return normal(random); });
        if (step == 2 || step == 5) {
          const float good = buffers.gradients[1][1][where];
          buffers.gradients[1][1][where] = bad;
          run_step(ring, buffers, step == 2 ? 1.0 : 64.0, false);
          for (const auto& result : buffers.results) {
            ASSERT_TRUE(std::isnan(result.front()) && std::isnan(result[where]) && std::isnan(result.back()));
          }
          buffers.gradients[1][1][where] = good;
        }
        collect(ring, messages);
        collect(twin, twin_messages);
        run_step(ring, buffers);
        run_step(twin, buffers);
        ring.observe(nullptr);
        ASSERT_EQ(messages, twin_messages) << step;
      }
      EXPECT_EQ(ring.node(2).stats().operations, 6U);
    }
  }
}

TEST_P(EveryCodec, ZerosStayZerosAndResidualsEmpty) {
  const BucketShape shape = shape_of({5000, 1, 70000}, 2);
  LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.01, 1));
  RingBuffers buffers(shape, 1);
  for (int step = 0; step < 8; ++step) {
    run_step(ring, buffers);
    for (const float value : buffers.results[1]) {
      ASSERT_EQ(value, 0.0F);
    }
  }
  EXPECT_EQ(ring.node(0).stats().residual_norm, 0.0);
}

TEST_P(EveryCodec, TakesOneElementAndDenormalsAndAllNegatives) {
  const BucketShape shape = shape_of({1, 4000, 3}, 2);
  std::mt19937 random(8);
  std::uniform_real_distribution<float> negative(-2.0F, -1.0F);
  for (const float unit : {1.0F, 1e-38F, 1e-41F, 1e30F}) {
    LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.1));
    RingBuffers buffers(shape, 1);
    double applied = 0;
    double given = 0;
    for (int step = 0; step < 20; ++step) {
      buffers.fill([&] { return negative(random) * unit; });
      run_step(ring, buffers);
      ASSERT_TRUE(buffers.results_equal());
      applied += static_cast<double>(buffers.results[0][77]);
      given +=
          static_cast<double>(buffers.gradients[0][0][77]) + static_cast<double>(buffers.gradients[1][0][77]);
    }
    for (size_t n = 0; n < 2; ++n) {
      const auto residual = ring.node(n).residual();
      applied += residual.empty() ? 0.0 : static_cast<double>(residual[77]);
    }
    EXPECT_NEAR(applied / static_cast<double>(unit), given / static_cast<double>(unit), 1e-3);
  }
}

TEST_P(EveryCodec, AChangeOfScaleCarriesTheResidualAlong) {
  const BucketShape shape = shape_of({3000, 100, 9000}, 2);
  LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.05));
  LoopbackRing twin = compressed_ring(shape, codec(GetParam(), 0.05));
  RingBuffers buffers(shape, 1);
  RingBuffers scaled(shape, 1);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  // Powers of two change no rounding, so everything scales exactly.
  for (const float scale : {1.0F, 1.0F, 1024.0F, 1024.0F, 512.0F, 1.0F}) {
    buffers.fill([&] { return normal(random); });
    for (size_t node = 0; node < 2; ++node) {
      for (size_t i = 0; i < scaled.gradients[node][0].size(); ++i) {
        scaled.gradients[node][0][i] = buffers.gradients[node][0][i] * scale;
      }
    }
    run_step(twin, buffers);
    run_step(ring, scaled, static_cast<double>(scale));
    for (size_t i = 0; i < buffers.results[0].size(); ++i) {
      ASSERT_EQ(scaled.results[0][i], buffers.results[0][i] * scale) << i;
    }
  }
}

// From one end of the range to the other the ratio is still a float's, and what is kept stays finite.
TEST_P(EveryCodec, TheSmallestAndTheLargestScaleFollowOneAnother) {
  const BucketShape shape = shape_of({3000, 100}, 2);
  LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.05));
  RingBuffers buffers(shape, 1);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const float scale : {0x1p-60F, 0x1p60F, 1.0F, 0x1p-60F, 1.0F, 0x1p60F, 0x1p-60F}) {
    buffers.fill([&] { return normal(random) * scale; });
    run_step(ring, buffers, static_cast<double>(scale));
    for (const float sum : buffers.results[0]) {
      ASSERT_TRUE(std::abs(sum) < 100 * scale) << sum << " at " << scale;
    }
  }
}

TEST_P(EveryCodec, StatsFollowTheCommit) {
  const BucketShape shape = shape_of({6000, 10}, 2);
  LoopbackRing ring = compressed_ring(shape, codec(GetParam(), 0.05));
  RingBuffers buffers(shape, 1);
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 5; ++step) {
    buffers.fill([&] { return normal(random); });
    run_step(ring, buffers);
  }
  const CompressionStats stats = ring.node(1).stats();
  EXPECT_EQ(stats.operations, 5U);
  EXPECT_EQ(stats.warm_stage, 255U);
  EXPECT_EQ(ring.node(1).codec_name(), GetParam());
  double squares = 0;
  for (const float value : ring.node(1).residual()) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(stats.residual_norm, std::sqrt(squares), 1e-9 * std::sqrt(squares));
  // Both residuals, and what the codec works in, which goes by its largest block.
  const uint64_t residuals = GetParam() == "none" ? 0U : 2U * 6010 * 4;
  EXPECT_GE(stats.residual_bytes, residuals);
  EXPECT_LE(stats.residual_bytes, residuals == 0 ? 0 : residuals + 16 * 6000);
}

TEST(Sparse, DensitySettlesAtTheTarget) {
  for (const char* name : {"laco", "lads"}) {
    for (const double target : {0.01, 0.05}) {
      const BucketShape shape = shape_of({20000}, 4);
      LoopbackRing ring = compressed_ring(shape, codec(name, target));
      EXPECT_NEAR(steady_density(ring, shape, 400, 100), target, 0.15 * target) << name;
    }
  }
}

TEST(Sparse, DensitySettlesWithTheCurrentNormAndWithSmallPieces) {
  CodecSettings settings = codec("laco", 0.02);
  settings.norm = NormChoice::kCurrent;
  const BucketShape whole = shape_of({20000}, 2);
  LoopbackRing current = compressed_ring(whole, settings);
  EXPECT_NEAR(steady_density(current, whole, 400, 100), 0.02, 0.004);
  const BucketShape pieces = shape_of({6000}, 8);
  LoopbackRing small = compressed_ring(pieces, codec("laco", 0.02));
  EXPECT_NEAR(steady_density(small, pieces, 400, 100), 0.02, 0.005);
}

TEST(Sparse, FirstAndLastOfMoreThanTwoLargeLayersAreDenser) {
  const BucketShape three = shape_of({8000, 8000, 8000}, 2);
  LoopbackRing edges = compressed_ring(three, codec("laco", 0.01));
  EXPECT_NEAR(steady_density(edges, three, 400, 100), 0.03, 0.005);
  const BucketShape two = shape_of({8000, 8000}, 2);
  LoopbackRing flat = compressed_ring(two, codec("laco", 0.01));
  EXPECT_NEAR(steady_density(flat, two, 400, 100), 0.01, 0.002);
}

TEST(Sparse, ABlockKeepsItsCapWhateverTheGradientDoes) {
  const BucketShape shape = shape_of({20000}, 1);
  LoopbackRing ring = compressed_ring(shape, codec("laco", 0.01));
  uint32_t most = 0;
  ring.observe([&](const Segment&, std::span<const std::byte> bytes) {
    // L8 codes, packed or not, by bitmap or Elias-Fano; the count follows scale and low bits.
    const auto mode = std::to_integer<uint32_t>(bytes[0]);
    ASSERT_TRUE(mode == 0 || mode >> 4 == 1 || mode >> 4 == 2);
    ASSERT_TRUE((mode & 15) != 1);
    if (mode != 0) {
      const size_t at = (mode & 15) == 3 ? 3 : 2;
      most = std::max(
          most, 1 + std::to_integer<uint32_t>(bytes[at]) + 256 * std::to_integer<uint32_t>(bytes[at + 1]));
    }
  });
  RingBuffers buffers(shape, 1);
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 30; ++step) {
    // Ten times the norm of the step before goes over any threshold made of it.
    const auto unit = static_cast<float>(std::pow(10.0, step % 6));
    buffers.fill([&] { return normal(random) * unit; });
    run_step(ring, buffers);
  }
  EXPECT_EQ(most, 800U);
}

TEST(Sparse, EqualGradientsEverywhereAreNotHeldBackForEver) {
  const BucketShape shape = shape_of({20000}, 2);
  LoopbackRing ring = compressed_ring(shape, codec("laco", 0.01));
  RingBuffers buffers(shape, 1);
  double applied = 0;
  buffers.fill([] { return 1.0F; });
  for (int step = 0; step < 60; ++step) {
    run_step(ring, buffers);
    applied += static_cast<double>(buffers.results[0][123]);
  }
  EXPECT_GT(applied, 60.0);
}

TEST(Sparse, WarmStartStepsThroughItsStagesAndStopsAtTheTarget) {
  const BucketShape shape = shape_of({30000}, 2);
  LoopbackRing ring = compressed_ring(shape, codec("laco", 0.01, 3));
  RingBuffers buffers(shape, 1);
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  const uint32_t stages[] = {0, 1, 2, 3, 255};
  const double caps[] = {1.0, 1.0, 0.25, 0.0625, 0.04};
  for (int step = 0; step < 15; ++step) {
    EXPECT_EQ(ring.node(0).stats().warm_stage, stages[step / 3]);
    buffers.fill([&] { return normal(random); });
    run_step(ring, buffers);
    const double density = ring.node(0).stats().density;
    EXPECT_LE(density, caps[step / 3] + 1e-3) << step;
    if (step < 3) {
      EXPECT_EQ(density, 1.0);
    }
  }
}

TEST(Sparse, TheDenseStageOfLadsIsExact) {
  const BucketShape shape = shape_of({10000, 5}, 2);
  LoopbackRing ring = compressed_ring(shape, codec("lads", 0.01, 2));
  RingBuffers buffers(shape, 1);
  std::mt19937 random(14);
  std::normal_distribution<float> normal;
  buffers.fill([&] { return normal(random); });
  run_step(ring, buffers);
  for (size_t i = 0; i < 10005; ++i) {
    ASSERT_EQ(buffers.results[0][i], buffers.gradients[0][0][i] + buffers.gradients[1][0][i]);
  }
}

TEST(Sparse, SmallLayersGoDense) {
  const BucketShape shape = shape_of({2047}, 1);
  Messages messages;
  LoopbackRing laco = compressed_ring(shape, codec("laco"));
  LoopbackRing lads = compressed_ring(shape, codec("lads"));
  collect(laco, messages);
  collect(lads, messages);
  RingBuffers buffers(shape, 1);
  buffers.fill([] { return 0.25F; });
  run_step(laco, buffers);
  run_step(lads, buffers);
  EXPECT_EQ(messages[0].size(), 2048U);
  EXPECT_EQ(messages[1].size(), 2047U * 4);
}

TEST(Compressor, RefusesSettingsOutsideTheirRangesAndNamesTheLayer) {
  const BucketShape shape = shape_of({10, 20}, 1);
  const auto refused = [&](auto change) {
    std::vector<CodecSettings> settings(2, codec("laco"));
    change(settings[1]);
    const Status status = make_compressor(shape, settings).status();
    EXPECT_NE(status.message().find("layer1"), std::string::npos) << status.message();
    return status.code();
  };
  EXPECT_EQ(refused([](auto& s) { s.codec = "gzip"; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](auto& s) { s.density = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](auto& s) { s.density = NAN; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](auto& s) { s.density = 1.5; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](auto& s) { s.edge_density_factor = 0.5; }), Code::kInvalidArgument);
  EXPECT_EQ(refused([](auto& s) { s.density_cap = 2000; }), Code::kInvalidArgument);
  EXPECT_EQ(make_compressor(shape, std::vector<CodecSettings>(1)).status().code(), Code::kInvalidArgument);
}

TEST(Compressor, RefusesOperationsItDoesNotOffer) {
  const BucketShape shape = shape_of({10}, 1);
  auto made = make_compressor(shape, std::vector<CodecSettings>{codec("l8")});
  BucketReducer& reducer = **made;
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kMin, 1)).code(), Code::kUnsupported);
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kSum, 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kSum, 1, 0.0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kSum, 1, HUGE_VAL)).code(), Code::kInvalidArgument);
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kSum, 1, 1e-39)).message(),
            "the scale 1e-39 is not from 2^-60 to 2^60 (8.7e-19 to 1.2e+18)");
  EXPECT_EQ(reducer.begin(operation(ReduceOp::kSum, 1, 0x1p61)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(reducer.begin(operation(ReduceOp::kSum, 1, 65536.0)).ok());
}

TEST(Compressor, AveragesAfterDecoding) {
  const BucketShape shape = shape_of({5000, 100}, 3);
  for (const char* name : {"none", "l8", "laco"}) {
    LoopbackRing sums = compressed_ring(shape, codec(name, 0.1));
    LoopbackRing averages = compressed_ring(shape, codec(name, 0.1));
    RingBuffers buffers(shape, 2);
    std::mt19937 random(15);
    std::normal_distribution<float> normal;
    buffers.fill([&] { return normal(random); });
    run_step(sums, buffers);
    const std::vector<float> sum = buffers.results[0];
    ASSERT_TRUE(*averages.run(operation(ReduceOp::kAverage, 6), buffers.locals(), buffers.result_starts()));
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_EQ(buffers.results[0][i], sum[i] * (1.0F / 6.0F));
    }
  }
}

TEST(Compressor, ReadsEachGradientElementOnce) {
  // A value that reaches the sum twice would show; here every element counts once for any number of ranks.
  const BucketShape shape = shape_of({4097, 1, 8193}, 2);
  for (const uint32_t ranks : {1U, 2U, 3U, 4U, 5U}) {
    LoopbackRing ring = compressed_ring(shape, codec("none"));
    RingBuffers buffers(shape, ranks);
    buffers.fill([] { return 1.0F; });
    run_step(ring, buffers);
    for (const float value : buffers.results[1]) {
      ASSERT_EQ(value, static_cast<float>(2 * ranks));
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
