// Which operations need no grant. docs/wire-format.md, "Grants".
#pragma once

#include <cstdint>

#include "compress/reducer.h"

namespace gradwire::engine {

// Bytes up to which a message may come before its receiver has started the operation.
inline constexpr uint32_t kSmallMessageBytes = 8192;

// Whether each chunk travels as one such message.
inline bool all_small(const compress::Geometry& geometry) {
  for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
    const auto segments = geometry.segments(chunk);
    if (segments.size() != 1 || segments[0].max_bytes > kSmallMessageBytes) {
      return false;
    }
  }
  return true;
}

}  // namespace gradwire::engine
