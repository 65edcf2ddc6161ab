// Exact operations on 16-bit floats: one rounding, whatever the number of nodes is.
#include <cmath>
#include <numeric>

#include "compress/half.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

class HalfRing : public PairRing<uint16_t> {
 public:
  HalfRing(Dtype dtype, const BucketShape& shape, bool shards = false)
      : PairRing(make(dtype, shape, shards), shape, 0xdead) {
    ring_.observe([](const Segment& segment, std::span<const std::byte> bytes) {
      EXPECT_EQ(bytes.size(), segment.elements * 2);
      EXPECT_EQ(segment.max_bytes, segment.elements * 4);
    });
  }

 private:
  static LoopbackRing make(Dtype dtype, const BucketShape& shape, bool shards) {
    std::vector<uint32_t> rank_chunk(shape.nodes);
    std::iota(rank_chunk.begin(), rank_chunk.end(), 0U);
    return ring_of(shape, [&](const BucketShape&) {
      return shards ? make_shard_reducer(shape, dtype, rank_chunk) : make_exact_reducer(shape, dtype);
    });
  }
};

// Values on a grid that fp32 adds without rounding: the result is the exact sum or average, rounded once.
template <typename Half>
void expect_one_rounding(Dtype dtype, bool shards) {
  std::mt19937 random(1);
  for (uint32_t nodes = 1; nodes <= 7; ++nodes) {
    for (const uint64_t size : {0U, 1U, 777U, 16250U * 2U}) {
      HalfRing ring(dtype, shape_of({size * nodes, 0}, nodes, 70000), shards);
      for (auto& gradient : ring.gradients()) {
        for (uint16_t& value : gradient) {
          value = Half::narrow(static_cast<float>(static_cast<int>(random() % 511) - 255) / 16);
        }
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        ASSERT_TRUE(*ring.run(op));
        for (size_t i = 0; i < ring.results()[0].size(); ++i) {
          float exact = 0;
          for (const auto& gradient : ring.gradients()) {
            exact += Half::widen(gradient[i]);
          }
          if (op == ReduceOp::kAverage) {
            exact /= static_cast<float>(2 * nodes);
          }
          ASSERT_EQ(ring.results()[0][i], Half::narrow(exact));
        }
        for (const auto& result : ring.results()) {
          ASSERT_EQ(result, ring.results()[0]);
        }
      }
    }
  }
}

TEST(HalfReducer, RoundsSumsAndAveragesOnce) {
  expect_one_rounding<Float16>(Dtype::kFloat16, false);
  expect_one_rounding<Bfloat16>(Dtype::kBfloat16, false);
}

TEST(HalfReducer, RoundsShardsOnce) {
  expect_one_rounding<Float16>(Dtype::kFloat16, true);
  expect_one_rounding<Bfloat16>(Dtype::kBfloat16, true);
}

TEST(HalfReducer, KeepsWhatSixteenBitsWouldLoseBetweenTheNodes) {
  // 2048 + 1 is 2048 in fp16; eight times 1 must not get lost one by one.
  HalfRing ring(Dtype::kFloat16, shape_of({3}, 4));
  for (size_t r = 0; r < ring.gradients().size(); ++r) {
    std::fill(ring.gradients()[r].begin(), ring.gradients()[r].end(),
              Float16::narrow(r == 0 ? 2048.0F : 1.0F));
  }
  ASSERT_TRUE(*ring.run(ReduceOp::kSum));
  EXPECT_EQ(ring.results()[3][2], Float16::narrow(2055.0F));
}

TEST(HalfReducer, AveragesWhoseSumIsBeyondFp16AreFinite) {
  HalfRing ring(Dtype::kFloat16, shape_of({3}, 2));
  for (auto& gradient : ring.gradients()) {
    std::fill(gradient.begin(), gradient.end(), Float16::narrow(60000.0F));
  }
  ASSERT_TRUE(*ring.run(ReduceOp::kAverage));
  EXPECT_EQ(ring.results()[0][0], Float16::narrow(60000.0F));
}

TEST(HalfReducer, AFiniteSumBeyondTheRangeIsInfinityInItsElementOnly) {
  HalfRing ring(Dtype::kFloat16, shape_of({3}, 2));
  for (auto& gradient : ring.gradients()) {
    gradient = {Float16::narrow(-60000.0F), Float16::narrow(2.0F), Float16::narrow(16376.0F)};
  }
  const auto done = ring.run(ReduceOp::kSum);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(*done);
  EXPECT_EQ(ring.results()[1], (std::vector<uint16_t>{0xfc00, Float16::narrow(8.0F), 0x7bff}));
}

TEST(HalfReducer, FlagsWhatIsNotFiniteAndPoisonsTheResult) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    for (const float bad : {HUGE_VALF, -HUGE_VALF, NAN}) {
      HalfRing ring(dtype, shape_of({2000}, 3));
      ring.gradients()[4][1999] = dtype == Dtype::kFloat16 ? Float16::narrow(bad) : Bfloat16::narrow(bad);
      const auto done = ring.run(ReduceOp::kAverage);
      ASSERT_TRUE(done.ok());
      EXPECT_FALSE(*done);
      const uint16_t nan = dtype == Dtype::kFloat16 ? Float16::kNan : Bfloat16::kNan;
      EXPECT_EQ(ring.results()[2], std::vector<uint16_t>(2000, nan));
    }
  }
}

TEST(HalfReducer, OffersMinimumMaximumAndProduct) {
  std::mt19937 random(3);
  HalfRing ring(Dtype::kBfloat16, shape_of({500}, 3));
  for (auto& gradient : ring.gradients()) {
    for (uint16_t& value : gradient) {
      value = Bfloat16::narrow(static_cast<float>(static_cast<int>(random() % 9) - 4));
    }
  }
  ring.gradients()[0][0] = Bfloat16::narrow(-HUGE_VALF);
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    const size_t begin = op == ReduceOp::kProduct ? 1 : 0;  // an infinity is no product, but a minimum
    if (begin == 1) {
      ring.gradients()[0][0] = 0;
    }
    ASSERT_TRUE(*ring.run(op));
    for (size_t i = begin; i < 500; ++i) {
      float expected = Bfloat16::widen(ring.gradients()[0][i]);
      for (size_t r = 1; r < ring.gradients().size(); ++r) {
        const float value = Bfloat16::widen(ring.gradients()[r][i]);
        expected = op == ReduceOp::kMin   ? std::min(expected, value)
                   : op == ReduceOp::kMax ? std::max(expected, value)
                                          : expected * value;
      }
      ASSERT_EQ(Bfloat16::widen(ring.results()[0][i]), expected);
    }
  }
}

TEST(HalfReducer, ChecksTheSizesOfPartialSumsAndOfFinishedSegments) {
  auto reducer = std::move(make_exact_reducer(shape_of({10}, 1), Dtype::kFloat16)).value();
  ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 2)).ok());
  const std::vector<uint16_t> gradient(10);
  const std::vector<const void*> locals = {gradient.data()};
  std::vector<std::byte> out(40);
  std::vector<uint16_t> result(10);
  const Segment& segment = reducer->geometry().segments(0)[0];
  for (size_t size = 0; size <= 50; ++size) {
    const std::vector<std::byte> bytes(size);
    EXPECT_EQ(reducer->decode(segment, bytes, result.data()).ok(), size == 20);
    EXPECT_EQ(reducer->hop(segment, bytes, locals, out.data()).ok(), size == 0 || size == 40);
  }
  EXPECT_EQ(reducer->begin(operation(ReduceOp::kSum, 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(reducer->begin(operation(static_cast<ReduceOp>(9), 2)).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::compress
