// The compression state as bytes: what is written is read, damage is found and named, and training goes on
// from it as if nothing had happened.
#include "compress/state_format.h"
#include "compress/state_layout.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

LayerState layer(std::string name, std::vector<float> residual) {
  LayerState state;
  state.name = std::move(name);
  state.elements = residual.size();
  state.residual.memory = std::make_shared<const std::vector<float>>(std::move(residual));
  state.scale = 1024;
  state.operations = 77;
  return state;
}

StateOrigin origin() {
  return {5, 3, 2, 6};
}

// Two buckets and an empty one; values that are easily lost, a layer inside a larger vector.
std::vector<StateSection> sections() {
  LayerState sparse = layer("fc.weight", {1.5F, -0.0F, 1e-42F, -3e38F, 0.1F});
  sparse.alpha = 1.7000000000000002;
  sparse.mean_square = 0.1;
  sparse.squares = 0.3;
  sparse.pieces = {{2, 0.1}, {3, 0.2}};
  sparse.threshold = 1e-41F;
  sparse.dispersion = 0.7;
  sparse.aimed = 0.25;
  sparse.velocity = {true, std::make_shared<const std::vector<float>>(std::vector<float>{0, 1, 2, 3, 4, 5}),
                     1};
  LayerState inner = layer("fc.bias", {9, 8, 7, 6});
  inner.residual.first = 1;
  inner.elements = 2;
  LayerState exact = layer("norm", {});
  exact.elements = 2;
  exact.residual = {};
  exact.velocity = {true, std::make_shared<const std::vector<float>>(std::vector<float>{7, -7}), 0};
  return {{"b0", {std::move(sparse), std::move(inner), std::move(exact)}},
          {"", {}},
          {"größer", {layer("w", {2, 3})}}};
}

Bytes written(std::vector<StateSection> what, size_t piece = SIZE_MAX) {
  StateWriter writer(origin(), std::move(what));
  Bytes bytes(writer.total_bytes() + 9);
  size_t at = 0;
  while (!writer.done()) {
    const size_t count = writer.fill(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    if (count == 0) {
      ADD_FAILURE() << "the writer stands still at byte " << at;
      break;
    }
    at += count;
  }
  EXPECT_EQ(at, writer.total_bytes());
  bytes.resize(at);
  return bytes;
}

Status read(const Bytes& bytes, StateReader& reader, size_t piece = SIZE_MAX) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min(piece, bytes.size() - at);
    GRADWIRE_RETURN_IF_ERROR(reader.feed(std::span(bytes).subspan(at, count)));
    at += count;
  }
  return reader.finish();
}

Status read(const Bytes& bytes) {
  StateReader reader;
  return read(bytes, reader);
}

void put_crc(Bytes& bytes, size_t from, size_t end) {
  store(bytes.data() + end, crc32c(std::span(bytes).subspan(from, end - from)));
}

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

TEST(StateFormat, EveryTruncationIsNoticed) {
  const Bytes whole = written(sections());
  for (size_t length = 0; length < whole.size(); ++length) {
    const Status status = read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    ASSERT_EQ(status.code(), Code::kCorrupt) << length;
    ASSERT_THAT(status.message(), HasSubstr("ends at byte " + std::to_string(length)));
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THAT(read(longer).message(), HasSubstr("something follows its end"));
}

TEST(StateFormat, EveryFlippedBitIsNoticed) {
  Bytes bytes = written(sections());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] ^= std::byte(1 << bit);
      const Status status = read(bytes);
      ASSERT_FALSE(status.ok()) << "byte " << at << ", bit " << bit;
      ASSERT_TRUE(status.code() == Code::kCorrupt || status.code() == Code::kUnsupported);
      bytes[at] ^= std::byte(1 << bit);
    }
  }
}

TEST(StateFormat, DamageIsNamed) {
  const Bytes whole = written(sections());
  Bytes bytes = whole;
  bytes[bytes.size() - 20] ^= std::byte{1};  // in the last residual
  EXPECT_THAT(read(bytes).message(), AllOf(HasSubstr("layer \"w\" of bucket \"größer\""),
                                           HasSubstr("checksum of its residual"), HasSubstr("another copy")));
  bytes = whole;
  bytes[0] = std::byte{'P'};
  EXPECT_THAT(read(bytes).message(),
              AllOf(HasSubstr("not a compression state"),
                    HasSubstr("begins with the bytes 50 57 53 54 41 54 45 0a and should begin with 47 57")));
  bytes = whole;
  for (const std::byte version : {std::byte{0}, std::byte{3}}) {
    bytes[12] = version;
    put_crc(bytes, 0, 60);
    EXPECT_EQ(read(bytes).code(), Code::kUnsupported);
    EXPECT_THAT(read(bytes).message(), HasSubstr("reads versions 1 to 2: update"));
  }
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

TEST(StateFormat, DamagedHeadsAreToldByWhatIsThereAndWhatShouldBe) {
  const Bytes whole = written(sections());
  const auto message = [&](size_t at, uint32_t value, bool sealed = false) {
    Bytes bytes = whole;
    store(bytes.data() + at, value);
    if (sealed) {
      put_crc(bytes, 0, 60);
    }
    return read(bytes).message();
  };
  constexpr size_t kSection = 64;
  constexpr size_t kLayer = kSection + 12 + 2 + 4;
  EXPECT_THAT(message(8, 0x0d0c0b0a), HasSubstr("byte order is 0x0d0c0b0a and should be 0x0a0b0c0d"));
  char crc[32];
  std::snprintf(crc, sizeof(crc), "should be 0x%08x", crc32c(std::span(whole).first(60)));
  EXPECT_THAT(message(60, 7), AllOf(HasSubstr("header's checksum is 0x00000007"), HasSubstr(crc)));
  EXPECT_THAT(message(56, 3, true), HasSubstr("reserved bytes 56 to 59 are 0x00000003 and should be 0"));
  EXPECT_THAT(message(40, 1000, true), HasSubstr("4 layers in 1000 buckets take more than the"));
  EXPECT_THAT(message(kSection, 5), HasSubstr("mark is 0x00000005 and should be 0x55425747"));
  EXPECT_THAT(message(kSection + 4, 4097), AllOf(HasSubstr("name of 4097 bytes"), HasSubstr("at most 4096")));
  EXPECT_THAT(message(kSection + 8, 9), AllOf(HasSubstr("9 layers"), HasSubstr("4 layers that are left")));
  EXPECT_THAT(message(kSection + 14, 9), HasSubstr("checksum of the bucket after it is 0x00000009"));
  EXPECT_THAT(message(kLayer, 5), HasSubstr("mark is 0x00000005 and should be 0x414c5747"));
  EXPECT_THAT(message(kLayer + 4, 0), AllOf(HasSubstr("name of 0 bytes"), HasSubstr("1 to 4096")));
  EXPECT_THAT(message(kLayer + 12, 1), HasSubstr("4294967301 elements"));
  using state_layout::kLayerBytes;
  using state_layout::kPiecesAt;
  EXPECT_THAT(message(kLayer + kPiecesAt, 65537),
              AllOf(HasSubstr("65537 pieces"), HasSubstr("at most 65536")));
  EXPECT_THAT(message(kLayer + kPiecesAt + 4, 4), AllOf(HasSubstr("contents"), HasSubstr("0x00000004")));
  EXPECT_THAT(message(kLayer + state_layout::kReservedAt, 2), HasSubstr("reserved bytes of 0x00000002"));
  EXPECT_THAT(message(kLayer + kLayerBytes, 2), HasSubstr("checksum of the layer after it is 0x"));
}

TEST(StateFormat, NumbersThatMakeNoSenseAreRefusedUnderGoodChecksums) {
  const auto refused = [](auto edit) {
    auto state = sections();
    edit(state[0].layers[0]);
    const Status status = read(written(std::move(state)));
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("fc.weight"));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused([](LayerState& state) { state.scale = 0; });
  refused([&](LayerState& state) { state.scale = nan; });
  refused([](LayerState& state) { state.alpha = -1; });
  refused([](LayerState& state) { state.threshold = -1; });
  refused([](LayerState& state) { state.dispersion = 1.1; });
  refused([](LayerState& state) { state.aimed = 1; });
  refused([](LayerState& state) { state.threshold = std::numeric_limits<float>::infinity(); });
  refused([](LayerState& state) {
    state.velocity.memory = std::make_shared<const std::vector<float>>(
        std::vector<float>{0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN(), 0});
  });
  refused([&](LayerState& state) { state.squares = nan; });
  refused([](LayerState& state) { state.mean_square = std::numeric_limits<double>::infinity(); });
  refused([](LayerState& state) { state.operations = UINT64_MAX; });
  refused([](LayerState& state) { state.pieces[0].elements = 1; });
  refused([](LayerState& state) { state.pieces[1].elements = UINT64_MAX; });
  refused([](LayerState& state) {
    state.residual.memory = std::make_shared<const std::vector<float>>(
        std::vector<float>{0, 0, 0, std::numeric_limits<float>::infinity(), 0});
  });
  auto empty = sections();
  empty[0].layers[1].residual.kept = false;
  EXPECT_EQ(read(written(std::move(empty))).code(), Code::kCorrupt) << "a layer of nothing";
  auto nameless = sections();
  nameless[0].layers[0].name = "two\nlines";
  EXPECT_THAT(read(written(std::move(nameless))).message(), HasSubstr("make no sense"));
}

TEST(StateFormat, AHeaderThatPromisesTooMuchCostsNothing) {
  const Bytes whole = written(sections());
  uint64_t asked = 0;
  StateReader careful([&](uint64_t bytes) {
    asked = bytes;
    return Status(Code::kResourceExhausted, "too much");
  });
  EXPECT_EQ(read(whole, careful, 1).code(), Code::kResourceExhausted);
  EXPECT_EQ(asked, whole.size() - 64 + 4 * sizeof(LayerState) + 3 * sizeof(StateSection));
  struct Promise {
    uint64_t payload, layers;
    uint32_t sections;
  };
  const uint64_t payload = whole.size() - 64;
  // Each by itself: bytes that overflow, and layers and buckets that do not fit into them.
  for (const Promise& promise :
       {Promise{UINT64_MAX, 4, 3}, Promise{UINT64_MAX / 4 + 1, 4, 3}, Promise{payload, payload / 77 + 1, 3},
        Promise{payload, 4, static_cast<uint32_t>(payload / 16 + 1)}}) {
    Bytes bytes = whole;
    store(bytes.data() + 16, promise.payload);
    store(bytes.data() + 24, promise.layers);
    store(bytes.data() + 40, promise.sections);
    put_crc(bytes, 0, 60);
    asked = 0;
    StateReader reader([&](uint64_t held) {
      asked = held;
      return ok_status();
    });
    EXPECT_THAT(read(bytes, reader).message(), HasSubstr("contradict")) << promise.payload;
    EXPECT_EQ(asked, 0u);
  }
  // A layer that would be longer than the whole state: refused before its name has come.
  Bytes bytes = whole;
  constexpr size_t kLayer = 64 + 12 + 2 + 4;
  store(bytes.data() + kLayer + 8, uint64_t{1} << 39);
  bytes.resize(kLayer + state_layout::kLayerBytes);
  EXPECT_THAT(read(bytes).message(), HasSubstr("549755813888 elements"));
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
