// Reduction of raw elements: out = combine(a, b), whatever the dtype; bytes may lie at any alignment.
//
// Loops are plain templates: at 12 bytes of traffic an element the baseline instruction set is fast enough.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "compress/bytes.h"
#include "compress/hot.h"
#include "compress/reducer.h"

namespace gradwire::compress::raw {

// Integers wrap around, as unsigned arithmetic does.
template <ReduceOp op, typename T>
inline T combine(T a, T b) {
  if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if constexpr (std::floating_point<T>) {
      // A NaN on either side wins.
      const bool first = op == ReduceOp::kMin ? a < b : a > b;
      return first || std::isnan(a) ? a : b;
    } else {
      return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
    }
  } else if constexpr (std::floating_point<T>) {
    return op == ReduceOp::kProduct ? a * b : a + b;
  } else {
    using U = std::make_unsigned_t<T>;
    using Wide = std::conditional_t<(sizeof(U) < 4), uint32_t, U>;
    const Wide x = static_cast<U>(a);
    const Wide y = static_cast<U>(b);
    return static_cast<T>(static_cast<U>(op == ReduceOp::kProduct ? x * y : x + y));
  }
}

// All ones in some lane where the value makes an operation's verdict "not finite": Inf or NaN of a sum,
// average or product; only NaN of a minimum or maximum, for which an infinity is an ordinary value.
template <ReduceOp op, typename T>
inline auto not_finite_mask(T value) {
  if constexpr (std::floating_point<T>) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      return static_cast<U>(-static_cast<U>(std::isnan(value)));
    } else {
      constexpr U exponent =
          sizeof(T) == 8 ? static_cast<U>(0x7ff0000000000000U) : static_cast<U>(0x7f800000U);
      return static_cast<U>(-static_cast<U>((std::bit_cast<U>(value) & exponent) == exponent));
    }
  } else {
    return uint32_t{0};
  }
}

template <ReduceOp op, typename T>
inline bool combine_bytes(const std::byte* a, const std::byte* b, std::byte* out, size_t count) {
  decltype(not_finite_mask<op>(T{})) bad = 0;
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const T sum = combine<op>(load<T>(a + sizeof(T) * i), load<T>(b + sizeof(T) * i));
    store(out + sizeof(T) * i, sum);
    bad |= not_finite_mask<op>(sum);
  }
  return bad != 0;
}

template <ReduceOp op, typename T>
inline bool copy_bytes(const std::byte* a, std::byte* out, size_t count) {
  decltype(not_finite_mask<op>(T{})) bad = 0;
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const T value = load<T>(a + sizeof(T) * i);
    store(out + sizeof(T) * i, value);
    bad |= not_finite_mask<op>(value);
  }
  return bad != 0;
}

// One hop over `count` elements: out = (arrived op g1) op g2 ...; `arrived` is null at the first hop. Returns
// whether the result is to be flagged. Without operands the result is zero.
template <ReduceOp op, typename T>
bool hop(const std::byte* arrived, std::span<const void* const> locals, uint64_t first, size_t count,
         std::byte* out) {
  constexpr size_t kTile = 4096 / sizeof(T);  // further ranks' passes find the tile in the first cache
  bool bad = false;
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t tile = std::min(kTile, count - begin);
    std::byte* const to = out + begin * sizeof(T);
    const auto local = [&](size_t i) {
      return static_cast<const std::byte*>(locals[i]) + (first + begin) * sizeof(T);
    };
    size_t next = 0;
    bool tile_bad = false;
    if (arrived != nullptr && !locals.empty()) {
      tile_bad = combine_bytes<op, T>(arrived + begin * sizeof(T), local(next++), to, tile);
    } else if (arrived != nullptr) {
      tile_bad = copy_bytes<op, T>(arrived + begin * sizeof(T), to, tile);
    } else if (locals.size() >= 2) {
      tile_bad = combine_bytes<op, T>(local(0), local(1), to, tile);
      next = 2;
    } else if (!locals.empty()) {
      tile_bad = copy_bytes<op, T>(local(next++), to, tile);
    } else {
      std::memset(to, 0, tile * sizeof(T));
    }
    for (; next < locals.size(); ++next) {
      tile_bad = combine_bytes<op, T>(to, local(next), to, tile);
    }
    bad |= tile_bad;
  }
  return bad;
}

// result[i] = value[i] * factor, a separate operation in T after decoding.
template <typename T>
inline void scale_bytes(const std::byte* bytes, T factor, T* result, size_t count) {
  GRADWIRE_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    result[i] = load<T>(bytes + sizeof(T) * i) * factor;
  }
}

}  // namespace gradwire::compress::raw
