// Shares that go straight to the owner of their chunk.
#include <algorithm>
#include <cmath>

#include "compress/codecs/codec.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

BucketShape direct_shape(const std::vector<uint64_t>& sizes, uint32_t nodes) {
  BucketShape shape = shape_of(sizes, nodes);
  shape.direct = true;
  return shape;
}

// rms(result - sum of gradients) / rms(sum of gradients) over some steps of a dense codec, each of which is
// the first of its buckets.
double relative_error(const BucketShape& shape, const CodecSettings& settings) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  double squares = 0;
  double errors = 0;
  for (int step = 0; step < 4; ++step) {
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    buffers.fill([&] { return normal(random); });
    EXPECT_TRUE(run_sum(ring, buffers));
    for (size_t i = 0; i < elements_of(shape); ++i) {
      double sum = 0;
      for (const auto& node : buffers.gradients) {
        sum += static_cast<double>(node[0][i]);
      }
      squares += sum * sum;
      errors += std::pow(static_cast<double>(buffers.results[0][i]) - sum, 2);
    }
  }
  return std::sqrt(errors / squares);
}

TEST(Direct, SumsIntegersExactlyWithoutACodec) {
  for (const uint32_t nodes : {3U, 4U, 7U}) {
    const BucketShape shape = direct_shape({1, 0, 5000, 77}, nodes);
    LoopbackRing ring = compressed_ring(shape, codec("none"));
    RingBuffers buffers(shape, 2);
    std::mt19937 random(nodes);
    for (int step = 0; step < 3; ++step) {
      buffers.fill([&] { return static_cast<float>(static_cast<int>(random() % 2001) - 1000); });
      ASSERT_TRUE(run_sum(ring, buffers));
      for (size_t i = 0; i < elements_of(shape); ++i) {
        float sum = 0;
        for (const auto& node : buffers.gradients) {
          sum += node[0][i] + node[1][i];
        }
        ASSERT_EQ(buffers.results[0][i], sum) << i;
      }
    }
  }
}

TEST(Direct, QuantisesTwiceHoweverManyNodesThereAre) {
  const double few = relative_error(direct_shape({20000}, 4), codec("l8"));
  const double many = relative_error(direct_shape({20000}, 32), codec("l8"));
  const double around = relative_error(shape_of({20000}, 32), codec("l8"));
  EXPECT_NEAR(many, few, 0.1 * few);
  EXPECT_NEAR(many, 0.035, 0.003);
  EXPECT_GT(around, 2 * many);
}

TEST(Direct, IsARingWhereTwoNodesShare) {
  RingBuffers one(shape_of({3000}, 2), 1);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  one.fill([&] { return normal(random); });
  RingBuffers other = one;
  LoopbackRing ring = compressed_ring(shape_of({3000}, 2), codec("laco"));
  LoopbackRing direct = compressed_ring(direct_shape({3000}, 2), codec("laco"));
  EXPECT_FALSE(direct.node(0).collects());
  ASSERT_TRUE(run_sum(ring, one) && run_sum(direct, other));
  EXPECT_EQ(one.results, other.results);
}

TEST(Direct, MeetsItsDensityWithBothNorms) {
  for (const NormOf norm_of : {NormOf::kSum, NormOf::kGradient}) {
    const BucketShape shape = direct_shape({40000}, 6);
    CodecSettings settings = codec("laco", 0.02);
    settings.norm_of = norm_of;
    LoopbackRing ring = compressed_ring(shape, settings);
    RingBuffers buffers(shape, 1);
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    double density = 0;
    for (int step = 0; step < 300; ++step) {
      buffers.fill([&] { return normal(random); });
      ASSERT_TRUE(run_sum(ring, buffers));
      density += step < 200 ? 0 : ring.node(2).stats().density / 100;
    }
    EXPECT_NEAR(density, 0.02, 0.15 * 0.02);
  }
}

TEST(Direct, IsPartOfWhatIsWritten) {
  const auto around = make_compressor(shape_of({3000}, 4), std::vector{codec("l8")});
  const auto straight = make_compressor(direct_shape({3000}, 4), std::vector{codec("l8")});
  ASSERT_TRUE(around.ok() && straight.ok());
  EXPECT_NE((*around)->wire_variant(), (*straight)->wire_variant());
}

TEST(Direct, TakesUpWhereARingEndedAndTheOtherWayRound) {
  const BucketShape shape = shape_of({9000, 30}, 4);
  RingBuffers buffers(shape, 1);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<double> given(elements_of(shape));
  std::vector<double> applied(elements_of(shape));
  std::vector<std::vector<LayerState>> state(shape.nodes);
  std::vector<double> held(elements_of(shape));
  for (const bool direct : {false, true, false}) {
    BucketShape cut = shape;
    cut.direct = direct;
    LoopbackRing ring = compressed_ring(cut, codec("laco", 0.02, 10));
    for (uint32_t n = 0; n < shape.nodes; ++n) {
      EXPECT_EQ(ring.node(n).restore_state(state[n]), state[n].size());
    }
    for (int step = 0; step < 20; ++step) {
      buffers.fill([&] { return normal(random); });
      ASSERT_TRUE(run_sum(ring, buffers));
      for (size_t i = 0; i < given.size(); ++i) {
        applied[i] += static_cast<double>(buffers.results[0][i]);
        for (const auto& node : buffers.gradients) {
          given[i] += static_cast<double>(node[0][i]);
        }
      }
    }
    held.assign(held.size(), 0.0);
    for (uint32_t n = 0; n < shape.nodes; ++n) {
      const auto residual = ring.node(n).residual();
      for (size_t i = 0; i < held.size(); ++i) {
        held[i] += static_cast<double>(residual[i]);
      }
      state[n] = ring.node(n).take_state();
    }
  }
  for (size_t i = 0; i < given.size(); ++i) {
    ASSERT_NEAR(applied[i] + held[i], given[i], 1e-3) << i;
  }
}

TEST(Direct, RefusesVotes) {
  const auto made = make_compressor(direct_shape({3000}, 4), std::vector{codec("sign")});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  EXPECT_NE(made.status().message().find("use algorithm ring"), std::string::npos) << made.status().message();
}

TEST(Direct, RefusesSharesOfOtherChunksAndDamagedOnes) {
  for (const char* name : {"none", "l8", "laco"}) {
    LoopbackRing ring = compressed_ring(direct_shape({9000}, 3), codec(name));
    BucketReducer& node = ring.node(0);
    ASSERT_TRUE(node.begin(operation(ReduceOp::kSum, 3)).ok());
    const std::vector<std::byte> nothing;
    const Segment& foreign = node.geometry().segments(0)[0];
    EXPECT_EQ(node.collect(foreign, nothing).code(), Code::kUnsupported);

    const Segment& own = node.geometry().segments(1)[0];
    const std::vector<float> gradient(9000, 1.5F);
    const void* const locals[] = {gradient.data()};
    std::vector<std::byte> share(own.max_bytes);
    ASSERT_TRUE(ring.node(1).begin(operation(ReduceOp::kSum, 3)).ok());
    const auto sent = ring.node(1).hop(own, {}, locals, share.data());
    ASSERT_TRUE(sent.ok());
    share.resize(sent->bytes);
    EXPECT_EQ(node.collect(own, std::span(share).first(share.size() - 1)).code(), Code::kCorrupt) << name;
    share.push_back(std::byte{0});
    EXPECT_EQ(node.collect(own, share).code(), Code::kCorrupt) << name;
    share.pop_back();
    EXPECT_TRUE(node.collect(own, share).ok()) << name;
  }
  const auto around = make_compressor(shape_of({3000}, 4), std::vector{codec("l8")});
  EXPECT_EQ((*around)->collect((*around)->geometry().segments(1)[0], {}).code(), Code::kUnsupported);
}

TEST(Direct, HoldsAChunkOfSharesMore) {
  const std::vector settings{codec("laco")};
  const BucketShape direct = direct_shape({1 << 20}, 4);
  const uint64_t more = held_bytes(direct, settings) - held_bytes(shape_of({1 << 20}, 4), settings);
  EXPECT_GE(more, (1U << 20) / 4 * sizeof(float));
  EXPECT_LE(more, ((1U << 20) / 4 + 64 + 65536) * sizeof(float));
}

TEST(AddDecoded, IsTheSumOfWhatIsDecoded) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const CodecRow& row : codec_table()) {
    if (row.make == nullptr || row.kind == CodecKind::kTally) {
      continue;
    }
    for (const double alpha : {0.0, 1.5, 3.0}) {  // dense, a bitmap, Elias-Fano
      constexpr uint32_t kElements = 4096;
      const auto made = row.make({codec(std::string(row.name)), kElements, 2});
      std::vector<float> values(kElements);
      std::vector<float> next(kElements);
      std::vector<float> sum(kElements);
      std::generate(values.begin(), values.end(), [&] { return normal(random); });
      std::generate(sum.begin(), sum.end(), [&] { return normal(random); });
      std::vector<std::byte> block(made->max_bytes(kElements));
      SparseRule rule;
      rule.dense = alpha == 0;
      rule.alpha = alpha;
      rule.cap = kElements;
      BlockInput input;
      input.residual = values.data();
      input.next = next.data();
      input.elements = kElements;
      input.rule = &rule;
      BlockRecord record;
      const auto done = made->hop(input, block.data(), record);
      ASSERT_TRUE(done.ok());
      const auto bytes = std::span<const std::byte>(block).first(done->bytes);
      std::vector<float> decoded(kElements);
      ByteReader once(bytes);
      ASSERT_TRUE(made->decode(once, kElements, 1.0F, decoded.data()).ok());
      std::vector<float> expected(kElements);
      for (size_t i = 0; i < kElements; ++i) {
        expected[i] = sum[i] + decoded[i];
      }
      std::vector<float> scratch(kElements);
      ByteReader again(bytes);
      ASSERT_TRUE(made->add_decoded(again, kElements, scratch.data(), sum.data()).ok());
      EXPECT_EQ(again.left(), 0U);
      EXPECT_EQ(sum, expected) << row.name << " at " << alpha;
      ByteReader cut(bytes.first(bytes.size() - 1));
      EXPECT_EQ(made->add_decoded(cut, kElements, scratch.data(), sum.data()).code(), Code::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
