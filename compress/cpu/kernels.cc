// Compiles dense_inl.h, l8_inl.h and sparse_inl.h once per instruction set, and chooses among them at run
// time.
#include "compress/cpu/kernels.h"

#include <array>
#include <vector>

// Not compiled: SSSE3 (SSE4 is as old as x86-64-v2), and vectors whose length is unknown before run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/cpu/kernels.cc"
// clang-format off: this one first
#include "hwy/foreach_target.h"  // NOLINT
// clang-format on

#include "compress/cpu/dense_inl.h"
#include "compress/cpu/hop_inl.h"
#include "compress/cpu/l8_inl.h"
#include "compress/cpu/sparse_inl.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace gradwire::compress::cpu::HWY_NAMESPACE {

constexpr Kernels kTable = {
    .name = HWY_STR(HWY_NAMESPACE),
    .add = add,
    .add_zero = add_zero,
    .multiply = multiply,
    .add_bytes = add_bytes,
    .max_magnitude = max_magnitude,
    .add_squares = add_squares,
    .add_magnitudes = add_magnitudes,
    .l8_encode = l8_encode,
    .l8_decode_add = l8_decode_add,
    .l8_decode_scaled = l8_decode_scaled,
    .l8_hop = l8_hop,
    .select = select,
    .scan = scan,
    .count_bits = count_bits,
    .set_bits = set_bits,
    .join_lows = join_lows,
    .widen_fp16 = widen_fp16,
    .widen_bf16 = widen_bf16,
    .narrow_fp16 = narrow_fp16,
    .narrow_bf16 = narrow_bf16,
    .narrow_bf16_by_chance = narrow_bf16_by_chance,
};

}  // namespace gradwire::compress::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace gradwire::compress::cpu {
namespace {

std::vector<const Kernels*> find_offered() {
  [[maybe_unused]] const int64_t here = hwy::SupportedTargets();
  std::vector<const Kernels*> tables;
#if HWY_TARGETS & HWY_AVX3_DL
  if ((here & HWY_AVX3_DL) != 0) {
    tables.push_back(&N_AVX3_DL::kTable);
  }
#endif
#if HWY_TARGETS & HWY_AVX3
  if ((here & HWY_AVX3) != 0) {
    tables.push_back(&N_AVX3::kTable);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if ((here & HWY_AVX2) != 0) {
    tables.push_back(&N_AVX2::kTable);
  }
#endif
#if HWY_TARGETS & HWY_SSE4
  if ((here & HWY_SSE4) != 0) {
    tables.push_back(&N_SSE4::kTable);
  }
#endif
#if HWY_TARGETS & HWY_NEON
  if ((here & HWY_NEON) != 0) {
    tables.push_back(&N_NEON::kTable);
  }
#endif
  tables.push_back(&reference());
  return tables;
}

}  // namespace

std::span<const Kernels* const> offered() {
  static const std::vector<const Kernels*> tables = find_offered();
  return tables;
}

const Kernels& kernels() {
  static const Kernels& fastest = *offered().front();
  return fastest;
}

}  // namespace gradwire::compress::cpu
#endif
