// A whole hop over one block, for the instruction set at hand. Included by kernels.cc alone.
//
// Two passes, the second within the first cache: the block's scale must be known before its first code. Each
// array in memory is read or written once.
#if defined(GRADWIRE_COMPRESS_CPU_HOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_CPU_HOP_INL_H_
#undef GRADWIRE_COMPRESS_CPU_HOP_INL_H_
#else
#define GRADWIRE_COMPRESS_CPU_HOP_INL_H_
#endif

#include "compress/cpu/l8_inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::cpu::HWY_NAMESPACE {

constexpr size_t kLine = 64;  // bytes

HWY_INLINE void fetch_floats(const float* from) {
  for (size_t at = 0; at < kGroup; at += kLine / sizeof(float)) {
    __builtin_prefetch(from + at, 0, 2);
  }
}

struct HopAhead {
  const L8Hop& hop;
  HWY_INLINE void fetch(size_t i) const {
    const size_t at = i + hop.count;
    fetch_floats(hop.residual + at);
    for (const void* local : hop.locals) {
      fetch_floats(static_cast<const float*>(local) + hop.first + at);
    }
    if (hop.arrived != nullptr && i % kLine == 0) {
      __builtin_prefetch(hop.arrived + at, 0, 2);
    }
  }
};

// Where a group's sums start: the residual, or what arrived on top of it.
struct FromResidual {
  HWY_INLINE VF operator()(const L8Hop& hop, size_t i) const { return hn::LoadU(DF(), hop.residual + i); }
};
template <bool kPlain>
struct FromArrived {
  const Decoder<kPlain>& decoder;
  HWY_INLINE VF operator()(const L8Hop& hop, size_t i) const {
    return hn::Add(decoder(load_codes(hop.arrived + i)), hn::LoadU(DF(), hop.residual + i));
  }
};

template <class From>
HWY_INLINE void sum_group(const L8Hop& hop, size_t i, const From& from, VU& largest, float* sum) {
  const DF df;
  VF a = from(hop, i);
  VF b = from(hop, i + kLanes);
  VF c = from(hop, i + 2 * kLanes);
  VF d = from(hop, i + 3 * kLanes);
  for (const void* local : hop.locals) {
    const float* const gradient = static_cast<const float*>(local) + hop.first + i;
    a = hn::Add(a, hn::LoadU(df, gradient));
    b = hn::Add(b, hn::LoadU(df, gradient + kLanes));
    c = hn::Add(c, hn::LoadU(df, gradient + 2 * kLanes));
    d = hn::Add(d, hn::LoadU(df, gradient + 3 * kLanes));
  }
  hn::Store(a, df, sum + i);
  hn::Store(b, df, sum + i + kLanes);
  hn::Store(c, df, sum + i + 2 * kLanes);
  hn::Store(d, df, sum + i + 3 * kLanes);
  largest = hn::Max(largest, hn::Max(hn::Max(magnitude_bits(a), magnitude_bits(b)),
                                     hn::Max(magnitude_bits(c), magnitude_bits(d))));
}

// The first pass over whole groups; returns how many elements those were.
HWY_INLINE size_t sum_groups(const L8Hop& given, VU& largest, float* sum) {
  const L8Hop hop = given;  // a copy that no store can change
  size_t i = 0;
  if (hop.arrived == nullptr) {
    for (; i + kGroup <= hop.count; i += kGroup) {
      sum_group(hop, i, FromResidual{}, largest, sum);
    }
    return i;
  }
  const Decoder<false> careful(hop.arrived_scale);
  if (!is_plain(hop.arrived_scale)) {
    for (; i + kGroup <= hop.count; i += kGroup) {
      sum_group(hop, i, FromArrived<false>{careful}, largest, sum);
    }
    return i;
  }
  const Decoder<true> plain_one(hop.arrived_scale);
  for (; i + kGroup <= hop.count; i += kGroup) {
    if (HWY_UNLIKELY(has_not_finite(hop.arrived + i))) {
      sum_group(hop, i, FromArrived<false>{careful}, largest, sum);
    } else {
      sum_group(hop, i, FromArrived<true>{plain_one}, largest, sum);
    }
  }
  return i;
}

inline L8HopSums l8_hop(const L8Hop& hop) {
  alignas(64) float sum[kFusedBlock];
  alignas(64) double partials[kPartials] = {};
  L8HopSums sums;

  VU largest = hn::Zero(DU());
  size_t i = sum_groups(hop, largest, sum);
  const size_t whole = i;
  for (; i < hop.count; ++i) {
    float value = hop.residual[i];
    if (hop.arrived != nullptr) {
      value = l8::decode_float(hop.arrived[i], hop.arrived_scale) + value;
    }
    sum[i] = plain::local_sum(value, hop.locals, hop.first + i);
  }
  sums.largest = HWY_MAX(largest_lane(largest), plain::max_magnitude(sum + whole, hop.count - whole));

  const uint32_t scale = l8::scale_of(sums.largest);
  const HopAhead ahead{hop};
  Squares rest;
  if (is_plain(scale)) {
    encode_groups<true>(sum, hop.count, scale, hop.codes, hop.next, rest, ahead);
  } else {
    encode_groups<false>(sum, hop.count, scale, hop.codes, hop.next, rest, ahead);
  }
  rest.store(partials);
  plain::l8_encode(sum + whole, hop.count - whole, scale, hop.codes + whole);
  for (i = whole; i < hop.count; ++i) {
    hop.next[i] = sum[i];
  }
  plain::add_squares(sum + whole, hop.count - whole, partials);
  sums.rest = plain::total(partials);
  return sums;
}

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif  // include guard
