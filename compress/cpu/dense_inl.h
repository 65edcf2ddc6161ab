// Sums, products, squares and 16-bit floats, for the instruction set at hand. Included by kernels.cc alone.
#if defined(GRADWIRE_COMPRESS_CPU_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#undef GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#else
#define GRADWIRE_COMPRESS_CPU_DENSE_INL_H_
#endif

#include "compress/bytes.h"
#include "compress/cpu/reference.h"
#include "compress/half.h"
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

// Past the caches, or not. Streaming needs whole vectors' alignment.
template <bool kStream>
HWY_INLINE void put(VF value, float* out) {
  if constexpr (kStream) {
    hn::Stream(value, DF(), out);
  } else {
    hn::StoreU(value, DF(), out);
  }
}
HWY_INLINE bool can_stream(const float* out) {
  return reinterpret_cast<uintptr_t>(out) % (kLanes * sizeof(float)) == 0;
}

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

// The partial sums of squares, in registers. Vector number v of a group belongs to the partials from
// v * kLanes mod 16 on.
class Squares {
 public:
  Squares() {
    for (VD& sum : sums_) {
      sum = hn::Zero(DD());
    }
  }
  explicit Squares(const double* partials) {
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
    sums_[kFirst] = hn::Add(sums_[kFirst], hn::Mul(low, low));
    sums_[kFirst + 1] = hn::Add(sums_[kFirst + 1], hn::Mul(high, high));
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

inline void add_squares(const float* values, size_t count, double* partials) {
  const DF df;
  Squares squares(partials);
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    squares.add<0>(hn::LoadU(df, values + i));
    squares.add<1>(hn::LoadU(df, values + i + kLanes));
    squares.add<2>(hn::LoadU(df, values + i + 2 * kLanes));
    squares.add<3>(hn::LoadU(df, values + i + 3 * kLanes));
  }
  squares.store(partials);
  plain::add_squares(values + i, count - i, partials);
}

// The compiler vectorises these for the instruction set of the namespace.
inline void widen_fp16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Float16::widen(load<uint16_t>(from + 2 * i));
  }
}

inline void widen_bf16(const std::byte* from, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Bfloat16::widen(load<uint16_t>(from + 2 * i));
  }
}

inline void narrow_fp16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    compress::store(out + 2 * i, Float16::narrow(values[i] / divisor));
  }
}

inline void narrow_bf16(const float* values, float divisor, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    compress::store(out + 2 * i, Bfloat16::narrow(values[i] / divisor));
  }
}

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif  // include guard
