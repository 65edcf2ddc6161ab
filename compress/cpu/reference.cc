#include "compress/cpu/reference.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compress/bytes.h"
#include "compress/half.h"
#include "compress/l8.h"
#include "compress/words.h"

namespace gradwire::compress::cpu {
namespace plain {

void add(const float* a, const float* b, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i];
  }
}

void add_zero(const float* a, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + 0.0F;
  }
}

void multiply(const float* a, float factor, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] * factor;
  }
}

void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = load<float>(bytes + 4 * i) + a[i];
  }
}

uint32_t max_magnitude(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, magnitude(values[i]));
  }
  return largest;
}

void add_squares(const float* values, size_t count, double* partials) {
  for (size_t i = 0; i < count; ++i) {
    const double value = values[i];
    partials[i % kPartials] += value * value;
  }
}

void add_magnitudes(const float* values, size_t count, double* partials) {
  for (size_t i = 0; i < count; ++i) {
    partials[i % kPartials] += std::abs(static_cast<double>(values[i]));
  }
}

void l8_encode(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = l8::encode(std::bit_cast<uint32_t>(values[i]), scale);
    values[i] -= l8::decode_float(codes[i], scale);
  }
}

void l8_decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend, float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = l8::decode_float(codes[i], scale) + addend[i];
  }
}

void l8_decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = l8::decode_float(codes[i], scale) * factor;
  }
}

L8HopSums l8_hop(const L8Hop& hop) {
  std::array<double, kPartials> rest{};
  L8HopSums sums;
  for (size_t i = 0; i < hop.count; ++i) {
    float value = hop.residual[i];
    if (hop.arrived != nullptr) {
      value = l8::decode_float(hop.arrived[i], hop.arrived_scale) + value;
    }
    hop.next[i] = local_sum(value, hop.locals, hop.first + i);
  }
  sums.largest = max_magnitude(hop.next, hop.count);
  l8_encode(hop.next, hop.count, l8::scale_of(sums.largest), hop.codes);
  add_squares(hop.next, hop.count, rest.data());
  sums.rest = total(rest.data());
  return sums;
}

uint32_t select(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions) {
  uint32_t selected = 0;
  for (uint32_t i = 0; i < count; ++i) {
    positions[selected] = i;
    selected += magnitude(values[i]) >= threshold ? 1 : 0;
  }
  return selected;
}

uint32_t scan(const Scan& scan, double* partials, uint32_t* positions) {
  uint32_t selected = 0;
  for (uint32_t i = 0; i < scan.count; ++i) {
    const float value = local_sum(scan.base[i], scan.locals, scan.first + i);
    scan.sum[i] = value;
    partials[i % kPartials] += static_cast<double>(value) * static_cast<double>(value);
    positions[selected] = scan.position + i;
    selected += magnitude(value) >= scan.threshold ? 1 : 0;
  }
  return selected;
}

size_t count_bits(const std::byte* bits, size_t bytes) {
  size_t set = 0;
  for (size_t at = 0; at < bytes; at += 8) {
    set += static_cast<size_t>(std::popcount(load_word(bits, at, bytes)));
  }
  return set;
}

void set_bits(const std::byte* bits, size_t bytes, uint32_t* out, size_t /*count*/) {
  for (size_t at = 0; at < bytes; at += 8) {
    for (uint64_t word = load_word(bits, at, bytes); word != 0; word &= word - 1) {
      *out++ = static_cast<uint32_t>(at * 8) + static_cast<uint32_t>(std::countr_zero(word));
    }
  }
}

bool join_lows_from(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t begin,
                    size_t count) {
  const uint32_t mask = (1U << low) - 1;
  int64_t previous = begin == 0 ? -1 : static_cast<int64_t>(positions[begin - 1]);
  bool increasing = true;
  for (size_t i = begin; i < count; ++i) {
    const size_t at = i * low;
    const uint64_t word = low == 0 ? 0 : load_word(lows, at / 8, size) >> (at % 8);
    positions[i] = (positions[i] - static_cast<uint32_t>(i)) << low | (static_cast<uint32_t>(word) & mask);
    increasing &= static_cast<int64_t>(positions[i]) > previous;
    previous = positions[i];
  }
  return increasing;
}

bool join_lows(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t count) {
  return join_lows_from(lows, size, low, positions, 0, count);
}

void widen_fp16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Float16::widen(load<uint16_t>(from + 2 * i));
  }
}

void widen_bf16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Bfloat16::widen(load<uint16_t>(from + 2 * i));
  }
}

void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out + 2 * i, Float16::narrow(values[i] / divisor));
  }
}

void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out + 2 * i, Bfloat16::narrow(values[i] / divisor));
  }
}

void narrow_by_chance_from(const float* values, uint64_t key, std::byte* out, size_t begin, size_t count) {
  for (size_t i = begin; i < count; ++i) {
    const uint32_t word = random_word(key, static_cast<uint32_t>(i / 32 * 16 + i % 16));
    const uint32_t random = i % 32 < 16 ? word & 0xffff : word >> 16;
    store(out + 2 * i, Bfloat16::narrow_by_chance(values[i], random));
  }
}

void narrow_bf16_by_chance(const float* values, uint64_t key, std::byte* out, size_t count) {
  narrow_by_chance_from(values, key, out, 0, count);
}

}  // namespace plain

const Kernels& reference() {
  static constexpr Kernels kPlain = {
      .name = "plain",
      .add = plain::add,
      .add_zero = plain::add_zero,
      .multiply = plain::multiply,
      .add_bytes = plain::add_bytes,
      .max_magnitude = plain::max_magnitude,
      .add_squares = plain::add_squares,
      .add_magnitudes = plain::add_magnitudes,
      .l8_encode = plain::l8_encode,
      .l8_decode_add = plain::l8_decode_add,
      .l8_decode_scaled = plain::l8_decode_scaled,
      .l8_hop = plain::l8_hop,
      .select = plain::select,
      .scan = plain::scan,
      .count_bits = plain::count_bits,
      .set_bits = plain::set_bits,
      .join_lows = plain::join_lows,
      .widen_fp16 = plain::widen_fp16,
      .widen_bf16 = plain::widen_bf16,
      .narrow_fp16 = plain::narrow_fp16,
      .narrow_bf16 = plain::narrow_bf16,
      .narrow_bf16_by_chance = plain::narrow_bf16_by_chance,
  };
  return kPlain;
}

}  // namespace gradwire::compress::cpu
