// L8 for the instruction set at hand: l8.h's encode() and decode() over vectors. Included by kernels.cc
// alone.
#if defined(GRADWIRE_COMPRESS_CPU_L8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_CPU_L8_INL_H_
#undef GRADWIRE_COMPRESS_CPU_L8_INL_H_
#else
#define GRADWIRE_COMPRESS_CPU_L8_INL_H_
#endif

#include "compress/cpu/dense_inl.h"
#include "compress/cpu/l8_tables.h"
#include "compress/l8.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::cpu::HWY_NAMESPACE {

// Eight words, looked up by the low 3 bits of each lane.
class Lookup8 {
 public:
#if HWY_MAX_BYTES >= 32
  explicit Lookup8(const std::array<uint32_t, 16>& words, uint32_t added = 0)
      : words_(hn::Add(hn::LoadU(DU(), words.data()), hn::Set(DU(), added))) {}

  HWY_INLINE VU operator()(VU index) const {
#if HWY_IS_DEBUG_BUILD
    index = hn::And(index, hn::Set(DU(), 7));
#endif
    // The instruction ignores higher bits; debug builds of Highway check them.
    return hn::TableLookupLanes(words_, hn::IndicesFromVec(DU(), index));
  }

 private:
  VU words_;
#else
  explicit Lookup8(const std::array<uint32_t, 16>& words, uint32_t added = 0)
      : low_(hn::Add(hn::LoadU(DU(), words.data()), hn::Set(DU(), added))),
        high_(hn::Add(hn::LoadU(DU(), words.data() + 4), hn::Set(DU(), added))) {}

  HWY_INLINE VU operator()(VU index) const {
    const auto lane = hn::IndicesFromVec(DU(), hn::And(index, hn::Set(DU(), 3)));
    const auto upper = hn::TestBit(index, hn::Set(DU(), 4));
    return hn::IfThenElse(upper, hn::TableLookupLanes(high_, lane), hn::TableLookupLanes(low_, lane));
  }

 private:
  VU low_, high_;
#endif
};

// kPlain: a block whose scale leaves nothing near zero, infinity or the largest float. Else every case of the
// format is looked after.
template <bool kPlain>
class Decoder;

template <>
class Decoder<true> {
 public:
  explicit Decoder(uint32_t scale) : words_(kCodeWords, base_of(scale)) {}

  // `codes`: sign-extended, none kNotFinite.
  HWY_INLINE VF operator()(VI codes) const {
    const DF df;
    const DI di;
    const DU du;
    const VU unsigned_codes = hn::BitCast(du, codes);
    const VU high = hn::And(hn::ShiftLeft<20>(unsigned_codes), hn::Set(du, 0x87f00000));
    const VF value = hn::BitCast(df, hn::Add(high, words_(unsigned_codes)));
    return hn::IfThenZeroElse(hn::RebindMask(df, hn::Eq(codes, hn::Zero(di))), value);
  }

 private:
  Lookup8 words_;
};

template <>
class Decoder<false> {
 public:
  explicit Decoder(uint32_t scale)
      : mantissas_(kDecodeWords), base_(hn::Set(DI(), 8 * static_cast<int32_t>(scale) - 119)) {}

  HWY_INLINE VF operator()(VI codes) const {
    const DF df;
    const DI di;
    const DU du;
    const VU sign = hn::And(hn::BitCast(du, codes), hn::Set(du, 0x80000000));
    const VI magnitude = hn::And(codes, hn::Set(di, 127));
    const VI index = hn::Min(hn::Add(magnitude, base_), hn::Set(di, l8::kMaxIndex));
    const auto zero = hn::Or(hn::Eq(magnitude, hn::Zero(di)), hn::Lt(index, hn::Set(di, 8)));
    const VU index_bits = hn::BitCast(du, index);
    const VU bits = hn::Or(hn::Add(hn::ShiftLeft<20>(index_bits), mantissas_(index_bits)), sign);
    const VF value = hn::IfThenZeroElse(hn::RebindMask(df, zero), hn::BitCast(df, bits));
    const auto bad = hn::Eq(codes, hn::Set(di, -128));
    return hn::IfThenElse(hn::RebindMask(df, bad), hn::BitCast(df, hn::Set(du, l8::kNan)), value);
  }

 private:
  Lookup8 mantissas_;
  VI base_;
};

constexpr bool is_plain(uint32_t scale) {
  return scale >= 16 && scale <= 253;
}

HWY_INLINE VI load_codes(const uint8_t* codes) {
  const hn::Rebind<int8_t, DI> d8;
  return hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
}

HWY_INLINE bool has_not_finite(const uint8_t* group) {
  const hn::ScalableTag<uint8_t> d8;
  return !hn::AllFalse(d8, hn::Eq(hn::LoadU(d8, group), hn::Set(d8, l8::kNotFinite)));
}

// A group's values, decoded and then added to or multiplied.
struct AddTo {
  const float* addend;
  HWY_INLINE VF operator()(VF value, size_t i) const { return hn::Add(value, hn::LoadU(DF(), addend + i)); }
};
struct Times {
  VF factor;
  HWY_INLINE VF operator()(VF value, size_t /*i*/) const { return hn::Mul(value, factor); }
};

template <bool kPlain, class Then>
HWY_INLINE void decode_group(const Decoder<kPlain>& decoder, const uint8_t* codes, size_t i, const Then& then,
                             float* out) {
  const DF df;
  for (size_t at = i; at < i + kGroup; at += kLanes) {
    hn::StoreU(then(decoder(load_codes(codes + at)), at), df, out + at);
  }
}

// Whole groups; returns how many elements those were.
template <class Then>
HWY_INLINE size_t decode_groups(const uint8_t* codes, size_t count, uint32_t scale, const Then& then,
                                float* out) {
  const Decoder<false> careful(scale);
  size_t i = 0;
  if (is_plain(scale)) {
    const Decoder<true> plain_one(scale);
    for (; i + kGroup <= count; i += kGroup) {
      if (HWY_UNLIKELY(has_not_finite(codes + i))) {
        decode_group(careful, codes, i, then, out);
      } else {
        decode_group(plain_one, codes, i, then, out);
      }
    }
  } else {
    for (; i + kGroup <= count; i += kGroup) {
      decode_group(careful, codes, i, then, out);
    }
  }
  return i;
}

inline void l8_decode_add(const uint8_t* codes, size_t count, uint32_t scale, const float* addend,
                          float* out) {
  const size_t i = decode_groups(codes, count, scale, AddTo{addend}, out);
  plain::l8_decode_add(codes + i, count - i, scale, addend + i, out + i);
}

inline void l8_decode_scaled(const uint8_t* codes, size_t count, uint32_t scale, float factor, float* out) {
  const size_t i = decode_groups(codes, count, scale, Times{hn::Set(DF(), factor)}, out);
  plain::l8_decode_scaled(codes + i, count - i, scale, factor, out + i);
}

// A code in its lane: bits 0 to 6, and the sign at bit 11, where a shift by 20 leaves a float's.
constexpr uint32_t kSignInLane = 1U << 11;

template <bool kPlain>
class Encoder;

// Adding the words leaves the sign bit alone, so that one addition and one shift find the code of either
// sign.
template <>
class Encoder<true> {
 public:
  explicit Encoder(uint32_t scale)
      : rounds_(kRoundWords, 0U - base_of(scale)),
        words_(kCodeWords, base_of(scale)),
        vanishing_(hn::Set(DI(), static_cast<int32_t>(smallest_sent(scale)) - 1)) {}

  // `rest` becomes value - D(code).
  HWY_INLINE VI operator()(VF value, VF& rest) const {
    const DF df;
    const DI di;
    const DU du;
    const auto sent = hn::Gt(hn::BitCast(di, magnitude_bits(value)), vanishing_);
    const VU shifted = hn::Add(hn::BitCast(du, value), hn::Set(du, kRoundOffset));
    const VU rounded = hn::Add(shifted, rounds_(hn::ShiftRight<20>(shifted)));
    const VU code = hn::ShiftRight<20>(rounded);
    const VU decoded = hn::Add(hn::And(rounded, hn::Set(du, 0xfff00000)), words_(code));
    rest = hn::Sub(value, hn::BitCast(df, hn::IfThenElseZero(hn::RebindMask(du, sent), decoded)));
    return hn::IfThenElseZero(sent, hn::BitCast(di, code));
  }

 private:
  Lookup8 rounds_;
  Lookup8 words_;
  VI vanishing_;
};

template <>
class Encoder<false> {
 public:
  explicit Encoder(uint32_t scale)
      : rounds_(kRoundWords),
        mantissas_(kDecodeWords),
        base_(hn::Set(DI(), 8 * static_cast<int32_t>(scale) - 119)),
        limit_(hn::Set(DI(), l8::code_limit(scale))) {}

  HWY_INLINE VI operator()(VF value, VF& rest) const {
    const DF df;
    const DI di;
    const DU du;
    const VU bits = hn::BitCast(du, value);
    const VU sign = hn::And(bits, hn::Set(du, 0x80000000));
    const VU magnitude = hn::Xor(bits, sign);
    const VU shifted = hn::Add(magnitude, hn::Set(du, kRoundOffset));
    const VU rounded = hn::Add(shifted, rounds_(hn::ShiftRight<20>(shifted)));
    const VI code = hn::Min(hn::Sub(hn::BitCast(di, hn::ShiftRight<20>(rounded)), base_), limit_);
    const VI index = hn::Add(code, base_);
    const VU bits_of_index = hn::BitCast(du, index);
    const VU decoded = hn::Or(hn::Add(hn::ShiftLeft<20>(bits_of_index), mantissas_(bits_of_index)), sign);
    const auto sent = hn::Gt(code, hn::Zero(di));
    const auto visible = hn::And(sent, hn::Gt(index, hn::Set(di, 7)));
    const auto bad = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(l8::kInfinity - 1)));
    const VF taken = hn::IfThenElseZero(hn::RebindMask(df, visible), hn::BitCast(df, decoded));
    rest = hn::Sub(value,
                   hn::IfThenElse(hn::RebindMask(df, bad), hn::BitCast(df, hn::Set(du, l8::kNan)), taken));
    const VI signed_code = hn::Or(code, hn::BitCast(di, hn::ShiftRight<20>(sign)));
    return hn::IfThenElse(bad, hn::Set(di, static_cast<int32_t>(kSignInLane)),
                          hn::IfThenElseZero(sent, signed_code));
  }

 private:
  Lookup8 rounds_;
  Lookup8 mantissas_;
  VI base_;
  VI limit_;
};

// Stores a group's codes as bytes.
class CodePacker {
 public:
  CodePacker()
      : pairs_(hn::LoadDup128(D8(), kUnpairBytes.data())),
        blocks_(hn::SetTableIndices(DU(), kBlockOrder<kLanes>.data())) {}

  HWY_INLINE void operator()(VI a, VI b, VI c, VI d, uint8_t* codes) const {
    const hn::Repartition<int16_t, DI> d16;
    const D8 d8;
    // Within 16 bytes: 4 of a and 4 of b in words' lower bytes, c and d in their upper ones.
    const auto ab = hn::ReorderDemote2To(d16, a, b);
    const auto cd = hn::ReorderDemote2To(d16, c, d);
    const auto codes_of_both = hn::Or(hn::And(ab, hn::Set(d16, 0x007f)), hn::ShiftLeft<8>(cd));
    const auto signs_of_both = hn::Or(hn::And(hn::ShiftRight<4>(ab), hn::Set(d16, 0x0080)),
                                      hn::And(hn::ShiftLeft<4>(cd), hn::Set(d16, INT16_MIN)));
    const auto pairs = hn::BitCast(d8, hn::Or(codes_of_both, signs_of_both));
    const VU blocks = hn::BitCast(DU(), hn::TableLookupBytes(pairs, pairs_));
    hn::StoreU(hn::BitCast(d8, hn::TableLookupLanes(blocks, blocks_)), d8, codes);
  }

 private:
  using D8 = hn::ScalableTag<uint8_t>;
  hn::Vec<D8> pairs_;
  decltype(hn::SetTableIndices(DU(), static_cast<const uint32_t*>(nullptr))) blocks_;
};

struct KeepNothing {
  template <size_t V>
  HWY_INLINE void add(VF /*value*/) {}
  void store(double* /*partials*/) const {}
};

// Whole groups of `count` values: codes, and what is left of each; returns how many elements those were.
template <bool kPlain, class Sums, class Ahead>
HWY_INLINE size_t encode_groups(const float* values, size_t count, uint32_t scale, uint8_t* codes,
                                float* rest, Sums& sums, const Ahead& ahead) {
  const DF df;
  const Encoder<kPlain> encoder(scale);
  const CodePacker pack;
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    ahead.fetch(i);
    VF r0, r1, r2, r3;
    const VI a = encoder(hn::LoadU(df, values + i), r0);
    const VI b = encoder(hn::LoadU(df, values + i + kLanes), r1);
    const VI c = encoder(hn::LoadU(df, values + i + 2 * kLanes), r2);
    const VI d = encoder(hn::LoadU(df, values + i + 3 * kLanes), r3);
    pack(a, b, c, d, codes + i);
    sums.template add<0>(r0);
    sums.template add<1>(r1);
    sums.template add<2>(r2);
    sums.template add<3>(r3);
    hn::StoreU(r0, df, rest + i);
    hn::StoreU(r1, df, rest + i + kLanes);
    hn::StoreU(r2, df, rest + i + 2 * kLanes);
    hn::StoreU(r3, df, rest + i + 3 * kLanes);
  }
  return i;
}

inline void l8_encode(float* values, size_t count, uint32_t scale, uint8_t* codes) {
  KeepNothing sums;
  const NothingAhead nothing;
  const size_t i = is_plain(scale) ? encode_groups<true>(values, count, scale, codes, values, sums, nothing)
                                   : encode_groups<false>(values, count, scale, codes, values, sums, nothing);
  plain::l8_encode(values + i, count - i, scale, codes + i);
}

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif  // include guard
