// A compression state of every kind of layer, as bytes and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/bytes.h"
#include "compress/crc32c.h"
#include "compress/state_format.h"
#include "compress/state_layout.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress::state_bytes {

using Bytes = std::vector<std::byte>;

inline LayerState layer(std::string name, std::vector<float> residual) {
  LayerState state;
  state.name = std::move(name);
  state.elements = residual.size();
  state.residual.memory = std::make_shared<const std::vector<float>>(std::move(residual));
  state.scale = 1024;
  state.operations = 77;
  return state;
}

inline StateOrigin origin() {
  return {5, 3, 2, 6};
}

// Two buckets and an empty one; values that are easily lost, a layer inside a larger vector.
inline std::vector<StateSection> sections() {
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
  LayerState settled = layer("head", {});  // its controllers only
  settled.elements = 1'000'000;
  settled.residual = {};
  settled.alpha = 1.5;
  settled.aimed = 0.01;
  return {{"b0", {std::move(sparse), std::move(inner), std::move(exact), std::move(settled)}},
          {"", {}},
          {"größer", {layer("w", {2, 3})}}};
}

inline Bytes written(std::vector<StateSection> what, size_t piece = SIZE_MAX) {
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

inline Status read(const Bytes& bytes, StateReader& reader, size_t piece = SIZE_MAX) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min(piece, bytes.size() - at);
    GRADWIRE_RETURN_IF_ERROR(reader.feed(std::span(bytes).subspan(at, count)));
    at += count;
  }
  return reader.finish();
}

inline Status read(const Bytes& bytes) {
  StateReader reader;
  return read(bytes, reader);
}

inline void put_crc(Bytes& bytes, size_t from, size_t end) {
  store(bytes.data() + end, crc32c(std::span(bytes).subspan(from, end - from)));
}

}  // namespace gradwire::compress::state_bytes
