// One hop against the formulas written out naively: ((D(arrived) + e) + g1) + g2 in fp32, Q of that, and what
// is left over.
#include <algorithm>
#include <cmath>

#include "compress/l8.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

constexpr size_t kElements = 5000;  // two dense blocks, the second one short

std::vector<float> gaussian(std::mt19937& random, float unit) {
  std::normal_distribution<float> normal(0.0F, unit);
  std::vector<float> values(kElements);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// Encodes S block by block as the format describes; S becomes the residual.
std::vector<std::byte> naive_l8(std::vector<float>& sum, size_t block) {
  std::vector<std::byte> bytes;
  for (size_t begin = 0; begin < sum.size(); begin += block) {
    const size_t end = std::min(sum.size(), begin + block);
    uint32_t scale = 0;
    for (size_t i = begin; i < end; ++i) {
      scale = std::max(scale, (std::bit_cast<uint32_t>(sum[i]) >> 23) & 255);
    }
    bytes.push_back(static_cast<std::byte>(scale));
    for (size_t i = begin; i < end; ++i) {
      const uint8_t code = l8::encode(std::bit_cast<uint32_t>(sum[i]), scale);
      bytes.push_back(static_cast<std::byte>(code));
      sum[i] -= l8::decode_float(code, scale);
    }
  }
  return bytes;
}

std::vector<float> naive_l8_decode(std::span<const std::byte> bytes, size_t block) {
  std::vector<float> values;
  size_t at = 0;
  while (at < bytes.size()) {
    const auto scale = std::to_integer<uint32_t>(bytes[at++]);
    for (size_t i = 0; i < block && at < bytes.size(); ++i) {
      values.push_back(l8::decode_float(std::to_integer<uint8_t>(bytes[at++]), scale));
    }
  }
  return values;
}

TEST(Hop, OfL8IsTheFormulaToTheBit) {
  const BucketShape shape = shape_of({kElements}, 1);
  auto reducer = std::move(make_compressor(shape, std::vector<CodecSettings>{codec("l8")})).value();
  const Segment& segment = reducer->geometry().segments(0)[0];
  std::mt19937 random(1);
  std::vector<float> residual(kElements);
  double scale_before = 1;
  for (const double scale : {1.0, 1.0, 3.0, 3.0, 0.7}) {
    std::vector<float> other = gaussian(random, 1.0F);
    const std::vector<std::byte> arrived = naive_l8(other, 4096);
    const std::vector<float> decoded = naive_l8_decode(arrived, 4096);
    const auto g1 = gaussian(random, 2.0F);
    const auto g2 = gaussian(random, 0.5F);
    const auto factor = static_cast<float>(scale / scale_before);
    for (size_t i = 0; i < kElements; ++i) {
      const float carried = factor == 1.0F ? residual[i] : residual[i] * factor;
      residual[i] = ((decoded[i] + carried) + g1[i]) + g2[i];
    }
    const std::vector<std::byte> expected = naive_l8(residual, 4096);
    const std::vector<const void*> locals = {g1.data(), g2.data()};
    std::vector<std::byte> out(segment.max_bytes);
    ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 2, scale)).ok());
    const auto done = reducer->hop(segment, arrived, locals, out.data());
    ASSERT_TRUE(done.ok() && done->bytes == expected.size() && !done->not_finite);
    ASSERT_EQ(out, expected);
    reducer->commit();
    ASSERT_EQ(std::vector<float>(reducer->residual().begin(), reducer->residual().end()), residual);
    scale_before = scale;
  }
}

// The first operation has no norm but its own: S = g, tau = 1.7 * rms(g), and a cap of 4 * 2% of the block.
TEST(Hop, OfLadsSendsExactlyWhatReachesTheThreshold) {
  const BucketShape shape = shape_of({kElements}, 1);
  for (const bool heavy : {false, true}) {
    auto reducer = std::move(make_compressor(shape, std::vector<CodecSettings>{codec("lads", 0.02)})).value();
    const Segment& segment = reducer->geometry().segments(0)[0];
    std::mt19937 random(2);
    std::vector<float> g = gaussian(random, 1.0F);
    if (heavy) {
      for (size_t i = 0; i < kElements; i += 2) {
        g[i] *= 0.01F;  // so that more than the cap are above the threshold
      }
    }
    std::vector<double> partial(16);
    for (size_t i = 0; i < kElements; ++i) {
      partial[i % 16] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
    }
    double squares = 0;
    for (const double part : partial) {
      squares += part;
    }
    auto tau = static_cast<float>(1.7 * std::sqrt(squares / kElements));
    std::vector<float> magnitudes;
    for (const float value : g) {
      magnitudes.push_back(std::abs(value));
    }
    std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
    const size_t cap = 400;
    if (magnitudes[cap] >= tau) {
      tau = std::nextafter(magnitudes[cap], HUGE_VALF);
    }
    const std::vector<const void*> locals = {g.data()};
    std::vector<std::byte> out(segment.max_bytes);
    std::vector<float> result(kElements);
    ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 1)).ok());
    const auto done = reducer->hop(segment, {}, locals, out.data());
    ASSERT_TRUE(done.ok());
    ASSERT_TRUE(reducer->decode(segment, std::span(out).first(done->bytes), result.data()).ok());
    reducer->commit();
    size_t sent = 0;
    for (size_t i = 0; i < kElements; ++i) {
      const bool above = std::abs(g[i]) >= tau;
      sent += above ? 1 : 0;
      ASSERT_EQ(result[i], above ? g[i] : 0.0F) << i;
      ASSERT_EQ(reducer->residual()[i], above ? 0.0F : g[i]) << i;
    }
    EXPECT_LE(sent, cap);
    EXPECT_EQ(reducer->stats().density, static_cast<double>(sent) / kElements);
  }
}

TEST(Hop, WithoutLocalRanksPassesOnWhatArrivedAndTheResidual) {
  const BucketShape shape = shape_of({kElements}, 1);
  for (const char* name : {"none", "l8", "lads", "laco"}) {
    auto reducer = std::move(make_compressor(shape, std::vector<CodecSettings>{codec(name, 0.5)})).value();
    const Segment& segment = reducer->geometry().segments(0)[0];
    std::vector<std::byte> out(segment.max_bytes);
    ASSERT_TRUE(reducer->begin(operation(ReduceOp::kSum, 1)).ok());
    const auto done = reducer->hop(segment, {}, {}, out.data());
    ASSERT_TRUE(done.ok());
    std::vector<std::byte> again(segment.max_bytes);
    const auto passed = reducer->hop(segment, std::span(out).first(done->bytes), {}, again.data());
    ASSERT_TRUE(passed.ok());
    std::vector<float> result(kElements, 1.0F);
    ASSERT_TRUE(reducer->decode(segment, std::span(again).first(passed->bytes), result.data()).ok());
    for (const float value : result) {
      ASSERT_EQ(value, 0.0F);
    }
    reducer->abandon();
  }
}

}  // namespace
}  // namespace gradwire::compress
