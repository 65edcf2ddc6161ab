// Selection and positions, for the instruction set at hand. Included by kernels.cc alone.
#if defined(GRADWIRE_COMPRESS_CPU_SPARSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_COMPRESS_CPU_SPARSE_INL_H_
#undef GRADWIRE_COMPRESS_CPU_SPARSE_INL_H_
#else
#define GRADWIRE_COMPRESS_CPU_SPARSE_INL_H_
#endif

#include "compress/cpu/bit_tables.h"
#include "compress/cpu/dense_inl.h"
#include "compress/words.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::cpu::HWY_NAMESPACE {

// Eight lanes of 32 bits in vectors of at most that many.
using D8x32 = hn::CappedTag<uint32_t, 8>;
constexpr size_t kLanes8 = HWY_MIN(kLanes, 8);

// Positions of lanes that reach the threshold. Whole vectors are stored, which overwrites nothing that
// counts: what was selected never outruns what was looked at.
class Selector {
 public:
  Selector(uint32_t threshold, uint32_t* positions)
      : below_(hn::Set(DI(), static_cast<int32_t>(threshold - 1))), positions_(positions) {}

  // Four vectors, the first of which starts at `position`. Most groups of a sparse selection end after one
  // look.
  HWY_INLINE void take(VF a, VF b, VF c, VF d, uint32_t position) {
    const DI di;
    const VI ma = hn::BitCast(di, magnitude_bits(a));
    const VI mb = hn::BitCast(di, magnitude_bits(b));
    const VI mc = hn::BitCast(di, magnitude_bits(c));
    const VI md = hn::BitCast(di, magnitude_bits(d));
    const VI largest = hn::Max(hn::Max(ma, mb), hn::Max(mc, md));
    if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(largest, below_)))) {
      return;
    }
    keep(ma, position);
    keep(mb, position + kLanes);
    keep(mc, position + 2 * kLanes);
    keep(md, position + 3 * kLanes);
  }

  uint32_t count() const { return static_cast<uint32_t>(count_); }

 private:
  HWY_INLINE void keep(VI magnitude, size_t position) {
    uint8_t bits[8];  // one a lane
    hn::StoreMaskBits(DI(), hn::Gt(magnitude, below_), bits);
    for (size_t j = 0; j < kLanes; j += kLanes8) {
      const size_t byte = bits[j / 8];
      const auto numbers =
          hn::PromoteTo(D8x32(), hn::LoadU(hn::Rebind<uint8_t, D8x32>(), kSetBits[byte].data()));
      const auto base = hn::Set(D8x32(), static_cast<uint32_t>(position + j));
      hn::StoreU(hn::Add(numbers, base), D8x32(), positions_ + count_);
      count_ += kBitCount[byte];
    }
  }

  VI below_;
  uint32_t* positions_;
  size_t count_ = 0;
};

inline uint32_t select(const float* values, uint32_t count, uint32_t threshold, uint32_t* positions) {
  const DF df;
  Selector selector(threshold, positions);
  uint32_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    selector.take(hn::LoadU(df, values + i), hn::LoadU(df, values + i + kLanes),
                  hn::LoadU(df, values + i + 2 * kLanes), hn::LoadU(df, values + i + 3 * kLanes), i);
  }
  uint32_t selected = selector.count();
  for (; i < count; ++i) {
    positions[selected] = i;
    selected += plain::magnitude(values[i]) >= threshold ? 1 : 0;
  }
  return selected;
}

HWY_INLINE uint32_t scan_groups(const Scan& given, Squares& squares, Selector& selector) {
  const DF df;
  const Scan scan = given;  // a copy that no store can change
  uint32_t i = 0;
  for (; i + kGroup <= scan.count; i += kGroup) {
    VF a = hn::LoadU(df, scan.base + i);
    VF b = hn::LoadU(df, scan.base + i + kLanes);
    VF c = hn::LoadU(df, scan.base + i + 2 * kLanes);
    VF d = hn::LoadU(df, scan.base + i + 3 * kLanes);
    for (const void* local : scan.locals) {
      const float* const gradient = static_cast<const float*>(local) + scan.first + i;
      a = hn::Add(a, hn::LoadU(df, gradient));
      b = hn::Add(b, hn::LoadU(df, gradient + kLanes));
      c = hn::Add(c, hn::LoadU(df, gradient + 2 * kLanes));
      d = hn::Add(d, hn::LoadU(df, gradient + 3 * kLanes));
    }
    hn::StoreU(a, df, scan.sum + i);
    hn::StoreU(b, df, scan.sum + i + kLanes);
    hn::StoreU(c, df, scan.sum + i + 2 * kLanes);
    hn::StoreU(d, df, scan.sum + i + 3 * kLanes);
    squares.add<0>(a);
    squares.add<1>(b);
    squares.add<2>(c);
    squares.add<3>(d);
    selector.take(a, b, c, d, scan.position + i);
  }
  return i;
}

inline uint32_t scan(const Scan& scan, double* partials, uint32_t* positions) {
  Squares squares(partials);
  Selector selector(scan.threshold, positions);
  const uint32_t i = scan_groups(scan, squares, selector);
  squares.store(partials);
  Scan rest = scan;
  rest.base += i;
  rest.sum += i;
  rest.first += i;
  rest.position += i;
  rest.count -= i;
  return selector.count() + plain::scan(rest, partials, positions + selector.count());
}

inline size_t count_bits(const std::byte* bits, size_t bytes) {
  size_t set = 0;
  for (size_t at = 0; at < bytes; at += 8) {
    set += static_cast<size_t>(std::popcount(load_word(bits, at, bytes)));
  }
  return set;
}

inline void set_bits(const std::byte* bits, size_t bytes, uint32_t* out, size_t count) {
  const D8x32 du;
  const hn::Rebind<uint8_t, D8x32> d8;
  const uint32_t* const end = out + count;
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = load_word(bits, at, bytes);
    // By bytes, eight numbers are stored for each, so as many must be left for all eight.
    if (std::popcount(word) <= 6 || end - out < 64) {
      for (; word != 0; word &= word - 1) {
        *out++ = static_cast<uint32_t>(8 * at) + static_cast<uint32_t>(std::countr_zero(word));
      }
      continue;
    }
    for (size_t k = 8 * at; k < 8 * at + 64; k += 8, word >>= 8) {
      const size_t byte = word & 255;
      const auto base = hn::Set(du, static_cast<uint32_t>(k));
      for (size_t j = 0; j < 8; j += kLanes8) {
        const auto numbers = hn::PromoteTo(du, hn::LoadU(d8, kSetBits[byte].data() + j));
        hn::StoreU(hn::Add(numbers, base), du, out + j);
      }
      out += kBitCount[byte];
    }
  }
}

// 8 fields of `low` bits are `low` bytes, so every eight of them start at a byte, and each lies within the
// four bytes that the shuffle puts into its lane.
inline bool join_lows(const std::byte* lows, size_t size, uint32_t low, uint32_t* positions, size_t count) {
  const D8x32 du;
  const hn::Repartition<uint8_t, D8x32> d8;
  const FieldTable& table = kFields[low];
  const auto mask = hn::Set(du, (1U << low) - 1);
  const auto lane_numbers = hn::Iota(du, 0);
  const hn::Repartition<int32_t, D8x32> di;
  auto increasing = hn::MaskFromVec(hn::Set(di, -1));
  // The first of all has no predecessor to be compared with.
  size_t i = HWY_MIN(count, 8);
  const bool begins_well = plain::join_lows_from(lows, size, low, positions, 0, i);
  for (; i + 8 <= count && i / 8 * low + 16 <= size; i += 8) {
    const auto bytes = hn::LoadDup128(d8, reinterpret_cast<const uint8_t*>(lows) + i / 8 * low);
    for (size_t at = i; at < i + 8; at += kLanes8) {
      const auto chosen = hn::LoadU(d8, table.bytes.data() + 4 * (at - i));
      const auto words = hn::BitCast(du, hn::TableLookupBytesOr0(bytes, chosen));
      const auto field = hn::And(words >> hn::LoadU(du, table.shifts.data() + (at - i)), mask);
      const auto number = hn::Add(lane_numbers, hn::Set(du, static_cast<uint32_t>(at)));
      const auto high =
          hn::ShiftLeftSame(hn::Sub(hn::LoadU(du, positions + at), number), static_cast<int>(low));
      const auto position = hn::Or(high, field);
      hn::StoreU(position, du, positions + at);
    }
  }
  // In a second pass: a load across a store of just before would wait for it.
  for (size_t at = 8; at < i; at += kLanes8) {
    const auto before = hn::BitCast(di, hn::LoadU(du, positions + at - 1));
    increasing = hn::And(increasing, hn::Gt(hn::BitCast(di, hn::LoadU(du, positions + at)), before));
  }
  const bool ends_well = plain::join_lows_from(lows, size, low, positions, i, count);
  return begins_well && ends_well && hn::AllTrue(di, increasing);
}

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif  // include guard
