// The compression state as bytes: what is written is read, and training goes on from it as if nothing had
// happened.
#include <gmock/gmock.h>

#include "tests/compress/state_bytes.h"

namespace gradwire::compress {
namespace {

using namespace state_bytes;  // NOLINT(google-build-using-namespace)

TEST(Crc32c, IsTheOneOfTheStandard) {
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(crc32c(bytes), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
  const Bytes zeros(32);
  EXPECT_EQ(crc32c(zeros), 0x8a9136aaU);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), 0xe3069283U) << cut;
  }
}

void expect_same(const LayerValues& a, const LayerValues& b, uint64_t elements) {
  ASSERT_EQ(a.kept, b.kept);
  for (uint64_t i = 0; a.kept && i < elements; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>((*a.memory)[a.first + i]),
              std::bit_cast<uint32_t>((*b.memory)[b.first + i]));
  }
}

TEST(StateFormat, WhatIsWrittenIsReadInPiecesOfAnySize) {
  const Bytes whole = written(sections());
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{100}, SIZE_MAX}) {
    SCOPED_TRACE(piece);
    EXPECT_EQ(written(sections(), piece), whole);
    StateReader reader;
    const Status status = read(whole, reader, piece);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader.origin().epoch, 5u);
    EXPECT_EQ(reader.origin().nodes, 3u);
    EXPECT_EQ(reader.origin().node_index, 2u);
    EXPECT_EQ(reader.origin().world, 6u);
    const auto got = reader.take();
    const auto expected = sections();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t s = 0; s < got.size(); ++s) {
      EXPECT_EQ(got[s].bucket, expected[s].bucket);
      ASSERT_EQ(got[s].layers.size(), expected[s].layers.size());
      for (size_t l = 0; l < got[s].layers.size(); ++l) {
        const LayerState& a = got[s].layers[l];
        const LayerState& b = expected[s].layers[l];
        EXPECT_EQ(a.name, b.name);
        EXPECT_EQ(a.operations, b.operations);
        EXPECT_EQ(std::tie(a.elements, a.scale, a.alpha, a.mean_square, a.squares, a.threshold),
                  std::tie(b.elements, b.scale, b.alpha, b.mean_square, b.squares, b.threshold));
        EXPECT_EQ(std::tie(a.dispersion, a.aimed), std::tie(b.dispersion, b.aimed));
        ASSERT_EQ(a.pieces.size(), b.pieces.size());
        for (size_t p = 0; p < a.pieces.size(); ++p) {
          EXPECT_EQ(a.pieces[p].elements, b.pieces[p].elements);
          EXPECT_EQ(a.pieces[p].squares, b.pieces[p].squares);
        }
        expect_same(a.residual, b.residual, a.elements);
        expect_same(a.velocity, b.velocity, a.elements);
      }
    }
  }
}

TEST(StateFormat, NothingAtAllIsAStateToo) {
  const Bytes bytes = written({});
  EXPECT_EQ(bytes.size(), 72u);
  StateReader reader;
  EXPECT_TRUE(read(bytes, reader).ok());
  EXPECT_TRUE(reader.take().empty());
}

TEST(StateFormat, ResidualsMayComeWhenTheyAreWanted) {
  auto lazy = sections();
  for (StateSection& section : lazy) {
    for (LayerState& each : section.layers) {
      each.residual.memory = each.velocity.memory = nullptr;
    }
  }
  lazy[0].layers[0].residual.first = 4;  // all in one vector
  lazy[0].layers[0].velocity.first = 9;
  lazy[0].layers[2].velocity.first = 14;
  StateWriter writer(origin(), std::move(lazy));
  Bytes bytes(writer.total_bytes());
  EXPECT_FALSE(writer.wants().has_value()) << "the header comes first";
  size_t at = writer.fill(bytes);
  EXPECT_EQ(at, 64u);
  ASSERT_EQ(writer.wants(), 0u);
  writer.supply(std::make_shared<const std::vector<float>>(
      std::vector<float>{9, 8, 7, 6, 1.5F, -0.0F, 1e-42F, -3e38F, 0.1F, 1, 2, 3, 4, 5, 7, -7}));
  at += writer.fill(std::span(bytes).subspan(at));
  ASSERT_EQ(writer.wants(), 2u);
  writer.supply(std::make_shared<const std::vector<float>>(std::vector<float>{2, 3}));
  at += writer.fill(std::span(bytes).subspan(at));
  EXPECT_TRUE(writer.done());
  EXPECT_EQ(at, bytes.size());
  EXPECT_EQ(bytes, written(sections()));
}

// What a gradwired of before has written: layers of 64 bytes, with residuals only.
TEST(StateFormat, VersionOneIsRead) {
  Bytes bytes;
  const auto put = [&bytes](auto value) {
    bytes.resize(bytes.size() + sizeof(value));
    store(bytes.data() + bytes.size() - sizeof(value), value);
  };
  const auto text = [&put](const char* from) {
    for (; *from != '\0'; ++from) {
      put(*from);
    }
  };
  size_t record = 0;
  uint32_t all = 0;
  const auto seal = [&] {
    put(crc32c(std::span(bytes).subspan(record)));
    all = crc32c(std::span(bytes).last(4), all);
    record = bytes.size();
  };
  text("GWSTATE\n");
  put(uint32_t{0x0a0b0c0d});
  put(uint32_t{1});
  put(uint64_t{12 + 1 + 4 + 64 + 1 + 16 + 4 + 8 + 4 + 8});
  put(uint64_t{1});
  put(uint64_t{5});
  for (const uint32_t number : {1U, 3U, 2U, 6U, 0U}) {
    put(number);
  }
  seal();
  text("GWBU");
  put(uint32_t{1});
  put(uint32_t{1});
  text("b");
  seal();
  const auto head = [&](uint32_t contents) {
    text("GWLA");
    put(uint32_t{1});
    put(uint64_t{2});
    for (const double number : {1024.0, 1.75, 0.25, 0.5}) {
      put(number);
    }
    put(uint64_t{77});
    put(uint32_t{1});
    put(contents);
    text("w");
    put(uint64_t{2});
    put(0.5);
    seal();
  };
  const Bytes before = bytes;
  head(0);
  put(1.5F);
  put(-2.5F);
  seal();
  text("GWEN");
  put(all);
  StateReader reader;
  const Status status = read(bytes, reader, 7);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto got = reader.take();
  const LayerState& w = got.at(0).layers.at(0);
  EXPECT_EQ(std::tie(w.name, w.scale, w.alpha, w.mean_square, w.squares, w.operations),
            std::make_tuple("w", 1024.0, 1.75, 0.25, 0.5, 77U));
  EXPECT_EQ(w.pieces.at(0).squares, 0.5);
  EXPECT_EQ(*w.residual.memory, (std::vector<float>{1.5F, -2.5F}));
  EXPECT_FALSE(w.velocity.kept);
  EXPECT_EQ(w.threshold, 0);
  bytes = before;
  record = bytes.size();
  head(1);
  EXPECT_EQ(read(bytes).code(), Code::kCorrupt) << "version 1 has no contents";
}

// Everything of a ring's nodes through bytes into another ring.
void move_state(LoopbackRing& from, LoopbackRing& to) {
  for (size_t n = 0; n < from.size(); ++n) {
    const BucketReducer& node = from.node(n);
    std::vector<LayerState> layers;  // in turns
    while (true) {
      auto some = node.describe_state(layers.size(), 3);
      if (some.empty()) {
        break;
      }
      std::move(some.begin(), some.end(), std::back_inserter(layers));
    }
    ASSERT_EQ(layers.size(), 4u);
    StateWriter writer(origin(), {{"b", std::move(layers)}});
    Bytes bytes(writer.total_bytes());
    size_t at = writer.fill(bytes);
    ASSERT_TRUE(writer.wants().has_value());
    const auto values = std::make_shared<std::vector<float>>(node.kept_floats());
    for (size_t begin = 0; begin < values->size(); begin += 30011) {
      const size_t count = std::min<size_t>(30011, values->size() - begin);
      node.copy_kept(begin, std::span(*values).subspan(begin, count));
    }
    writer.supply(values);
    at += writer.fill(std::span(bytes).subspan(at));
    ASSERT_EQ(at, bytes.size());
    StateReader reader;
    const Status status = read(bytes, reader);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto got = reader.take();
    EXPECT_EQ(to.node(n).restore_state(got[0].layers), got[0].layers.size());
  }
}

TEST(StateFormat, TrainingGoesOnBitForBit) {
  const BucketShape shape = shape_of({30000, 500, 40000, 20000}, 3, 70000);
  std::vector<CodecSettings> settings(4, codec("laco", 0.02, 2));
  settings[3].norm = NormChoice::kCurrent;
  settings[0].momentum = 0.9;
  settings[0].residuals = ResidualType::kBfloat16;
  settings[1].momentum = 0.5;
  settings[2] = codec("dropping", 0.02, 2);
  LoopbackRing straight = compressed_ring(shape, settings);
  LoopbackRing resumed = compressed_ring(shape, settings);
  RingBuffers buffers(shape, 2);
  RingBuffers others(shape, 2);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto step = [&](LoopbackRing& ring, RingBuffers& into, double scale) {
    const auto done =
        ring.run(operation(ReduceOp::kAverage, into.ranks(), scale), into.locals(), into.result_starts());
    ASSERT_TRUE(done.ok() && *done);
  };
  for (int i = 0; i < 9; ++i) {
    buffers.fill([&] { return normal(random); });
    step(straight, buffers, i < 7 ? 1.0 : 3.0);
  }
  move_state(straight, resumed);
  for (int i = 0; i < 12; ++i) {
    buffers.fill([&] { return normal(random); });
    others.gradients = buffers.gradients;
    const double scale = i < 6 ? 3.0 : 1.0;
    step(straight, buffers, scale);
    step(resumed, others, scale);
    for (size_t n = 0; n < buffers.results.size(); ++n) {
      ASSERT_EQ(std::memcmp(buffers.results[n].data(), others.results[n].data(),
                            buffers.results[n].size() * sizeof(float)),
                0)
          << "step " << i << ", node " << n;
      EXPECT_EQ(straight.node(n).stats().warm_stage, resumed.node(n).stats().warm_stage);
    }
  }
}

}  // namespace
}  // namespace gradwire::compress
