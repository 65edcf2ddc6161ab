// Sums, products, squares and 16-bit floats, for the instruction set at hand. Included by kernels.cc alone.
#if defined(GRADWIRE_COMPRESS_CPU_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#undef GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#else
#define GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#endif

#include "compress/cpu/reference.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using DI = hn::ScalableTag<int32_t>;
using DD = hn::ScalableTag<double>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;
using VD = hn::Vec<DD>;

// The loops go by groups: four vectors, a multiple of 16 elements.
constexpr size_t kLanes = HWY_LANES(float);
constexpr size_t kGroup = 4 * kLanes;

// What a loop over a block in the first cache asks memory for meanwhile: the operands of the block behind it,
// which mostly is the next one.
struct NothingAhead {
  HWY_INLINE void fetch(size_t /*i*/) const {}
};

HWY_INLINE VU magnitude_bits(VF value) {
  return hn::And(hn::BitCast(DU(), value), hn::Set(DU(), 0x7fffffff));
}

inline void add(const float* a, const float* b, float* out, size_t count) {
  const DF df;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(df, a + i), hn::LoadU(df, b + i)), df, out + i);
  }
  plain::add(a + i, b + i, out + i, count - i);
}

inline void add_zero(const float* a, float* out, size_t count) {
  const DF df;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(df, a + i), hn::Zero(df)), df, out + i);
  }
  plain::add_zero(a + i, out + i, count - i);
}

inline void multiply(const float* a, float factor, float* out, size_t count) {
  const DF df;
  const VF factors = hn::Set(df, factor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(df, a + i), factors), df, out + i);
  }
  plain::multiply(a + i, factor, out + i, count - i);
}

inline void add_bytes(const std::byte* bytes, const float* a, float* out, size_t count) {
  const DF df;
  const hn::Repartition<uint8_t, DF> d8;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF value = hn::BitCast(df, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(bytes + 4 * i)));
    hn::StoreU(hn::Add(value, hn::LoadU(df, a + i)), df, out + i);
  }
  plain::add_bytes(bytes + 4 * i, a + i, out + i, count - i);
}

HWY_INLINE uint32_t largest_lane(VU lanes) {
  return hn::GetLane(hn::MaxOfLanes(DU(), lanes));
}

inline uint32_t max_magnitude(const float* values, size_t count) {
  const DF df;
  VU a = hn::Zero(DU());
  VU b = a;
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    a = hn::Max(a, hn::Max(magnitude_bits(hn::LoadU(df, values + i)),
                           magnitude_bits(hn::LoadU(df, values + i + kLanes))));
    b = hn::Max(b, hn::Max(magnitude_bits(hn::LoadU(df, values + i + 2 * kLanes)),
                           magnitude_bits(hn::LoadU(df, values + i + 3 * kLanes))));
  }
  return HWY_MAX(largest_lane(hn::Max(a, b)), plain::max_magnitude(values + i, count - i));
}

struct SquareOf {
  HWY_INLINE VD operator()(VD value) const { return hn::Mul(value, value); }
};
struct MagnitudeOf {
  HWY_INLINE VD operator()(VD value) const { return hn::Abs(value); }
};

// The partial sums of squares or magnitudes, in registers. Vector number v of a group belongs to the partials
// from v * kLanes mod 16 on.
template <class Of>
class Sums {
 public:
  Sums() {
    for (VD& sum : sums_) {
      sum = hn::Zero(DD());
    }
  }
  explicit Sums(const double* partials) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums_[i] = hn::LoadU(DD(), partials + i * kDoubles);
    }
  }

  template <size_t V>
  HWY_INLINE void add(VF value) {
    const hn::Half<DF> half;
    constexpr size_t kFirst = (2 * V) % kVectors;
    const VD low = hn::PromoteTo(DD(), hn::LowerHalf(half, value));
    const VD high = hn::PromoteTo(DD(), hn::UpperHalf(half, value));
    sums_[kFirst] = hn::Add(sums_[kFirst], Of()(low));
    sums_[kFirst + 1] = hn::Add(sums_[kFirst + 1], Of()(high));
  }

  void store(double* partials) const {
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(sums_[i], DD(), partials + i * kDoubles);
    }
  }

 private:
  static constexpr size_t kDoubles = HWY_LANES(double);
  static constexpr size_t kVectors = kPartials / kDoubles;
  VD sums_[kVectors];
};

using Squares = Sums<SquareOf>;

// Over whole groups; returns how many elements those were.
template <class Of>
HWY_INLINE size_t add_groups(const float* values, size_t count, double* partials) {
  const DF df;
  Sums<Of> sums(partials);
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    sums.template add<0>(hn::LoadU(df, values + i));
    sums.template add<1>(hn::LoadU(df, values + i + kLanes));
    sums.template add<2>(hn::LoadU(df, values + i + 2 * kLanes));
    sums.template add<3>(hn::LoadU(df, values + i + 3 * kLanes));
  }
  sums.store(partials);
  return i;
}

inline void add_squares(const float* values, size_t count, double* partials) {
  const size_t i = add_groups<SquareOf>(values, count, partials);
  plain::add_squares(values + i, count - i, partials);
}

inline void add_magnitudes(const float* values, size_t count, double* partials) {
  const size_t i = add_groups<MagnitudeOf>(values, count, partials);
  plain::add_magnitudes(values + i, count - i, partials);
}

HWY_INLINE VU load_halves(const std::byte* from) {
  const hn::Rebind<uint16_t, DU> d16;
  return hn::PromoteTo(DU(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from)));
}
HWY_INLINE void store_halves(VU halves, std::byte* out) {
  const hn::Rebind<uint16_t, DU> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(DI(), halves)), d16, reinterpret_cast<uint16_t*>(out));
}
// All bits of a lane where a > b; both below 2^31.
HWY_INLINE hn::Mask<DU> above(VU a, uint32_t b) {
  return hn::RebindMask(DU(), hn::Gt(hn::BitCast(DI(), a), hn::Set(DI(), static_cast<int32_t>(b))));
}

// The formulas of compress/half.h.
inline void widen_fp16(const std::byte* from, float* out, size_t count) {
  const DU du;
  const VF unit = hn::Set(DF(), 5.9604644775390625e-08F);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VU half = load_halves(from + 2 * i);
    const VU sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
    const VU magnitude = hn::And(half, hn::Set(du, 0x7fff));
    const VU shifted = hn::ShiftLeft<13>(magnitude);
    const VU normal = hn::Add(shifted, hn::Set(du, uint32_t{112} << 23));
    const VU subnormal = hn::BitCast(du, hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), magnitude)), unit));
    const VU finite = hn::IfThenElse(above(magnitude, 0x03ff), normal, subnormal);
    const VU quiet = hn::IfThenElseZero(above(magnitude, 0x7c00), hn::Set(du, 0x00400000));
    const VU special = hn::Or(hn::Or(shifted, hn::Set(du, 0x7f800000)), quiet);
    const VU bits = hn::Or(sign, hn::IfThenElse(above(magnitude, 0x7bff), special, finite));
    hn::StoreU(hn::BitCast(DF(), bits), DF(), out + i);
  }
  plain::widen_fp16(from + 2 * i, out + i, count - i);
}

inline void widen_bf16(const std::byte* from, float* out, size_t count) {
  const DU du;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VU half = load_halves(from + 2 * i);
    const VU quiet =
        hn::IfThenElseZero(above(hn::And(half, hn::Set(du, 0x7fff)), 0x7f80), hn::Set(du, 0x00400000));
    hn::StoreU(hn::BitCast(DF(), hn::Or(hn::ShiftLeft<16>(half), quiet)), DF(), out + i);
  }
  plain::widen_bf16(from + 2 * i, out + i, count - i);
}

inline void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count) {
  const DU du;
  const VF divisors = hn::Set(DF(), divisor);
  const VF half = hn::Set(DF(), 0.5F);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VU bits = hn::BitCast(du, hn::Div(hn::LoadU(DF(), values + i), divisors));
    const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
    const VU shifted = hn::ShiftRight<13>(magnitude);
    const VU odd = hn::And(shifted, hn::Set(du, 1));
    const VU normal =
        hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xfff - (uint32_t{112} << 23))), odd));
    const VU subnormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(DF(), magnitude), half)), hn::Set(du, 0x3f000000));
    const VU finite = hn::IfThenElse(above(magnitude, 0x387fffff), normal, subnormal);
    const VU nan = hn::Or(hn::Set(du, 0x7e00), hn::And(shifted, hn::Set(du, 0x3ff)));
    const VU special = hn::IfThenElse(above(magnitude, 0x7f800000), nan, hn::Set(du, 0x7c00));
    store_halves(hn::Or(sign, hn::IfThenElse(above(magnitude, 0x477fefff), special, finite)), out + 2 * i);
  }
  plain::narrow_fp16(values + i, divisor, out + 2 * i, count - i);
}

inline void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count) {
  const DU du;
  const VF divisors = hn::Set(DF(), divisor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VU bits = hn::BitCast(du, hn::Div(hn::LoadU(DF(), values + i), divisors));
    const VU upper = hn::ShiftRight<16>(bits);
    const VU odd = hn::And(upper, hn::Set(du, 1));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
    const auto nan = above(hn::And(bits, hn::Set(du, 0x7fffffff)), 0x7f800000);
    store_halves(hn::IfThenElse(nan, hn::Or(upper, hn::Set(du, 0x40)), rounded), out + 2 * i);
  }
  plain::narrow_bf16(values + i, divisor, out + 2 * i, count - i);
}

// random_word() of half.h.
HWY_INLINE VU random_words(uint64_t key, size_t first) {
  const DU du;
  const auto low = static_cast<uint32_t>(key);
  const auto high = static_cast<uint32_t>(key >> 32);
  VU x = hn::Mul(hn::Iota(du, static_cast<uint32_t>(first)), hn::Set(du, 0x9e3779b9U));
  x = hn::Add(x, hn::Set(du, low));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x85ebca6bU));
  x = hn::Add(x, hn::Set(du, high));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(du, 0xc2b2ae35U));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

HWY_INLINE void narrow_by_chance(const float* values, VU random, std::byte* out) {
  const DU du;
  const VU bits = hn::BitCast(du, hn::LoadU(DF(), values));
  const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
  const VU magnitude = hn::Add(hn::And(bits, hn::Set(du, 0x7fffffff)), random);
  const VU most = hn::Min(magnitude, hn::Set(du, 0x7f7fffff));
  store_halves(hn::Or(sign, hn::ShiftRight<16>(most)), out);
}

inline void narrow_bf16_by_chance(const float* values, uint64_t key, std::byte* out, size_t count) {
  static_assert(16 % kLanes == 0);
  const VU low = hn::Set(DU(), 0xffff);
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (size_t j = i; j < i + 16; j += kLanes) {
      const VU word = random_words(key, j - i / 2);
      narrow_by_chance(values + j, hn::And(word, low), out + 2 * j);
      narrow_by_chance(values + j + 16, hn::ShiftRight<16>(word), out + 2 * (j + 16));
    }
  }
  plain::narrow_by_chance_from(values, key, out, i, count);
}

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif  // include guard
