#include "daemon/engine/result_samples.h"

#include <algorithm>
#include <cstring>

#include "config/base/scramble.h"
#include "config/base/xxh64.h"

namespace gradwire::engine {

namespace {

constexpr size_t kWindows = kSampledBytes / kSampleWindow;
constexpr size_t kCacheLine = 64;

// A generator that is a function of seed and index.
uint64_t random_number(uint64_t seed, uint64_t index) {
  return scramble(seed + (index + 1) * kGolden);
}

// At the start of a cache line, unless it ends with the result.
size_t window_offset(size_t bytes, uint64_t lot, size_t window) {
  const size_t last = bytes - kSampleWindow;
  const size_t lines = last / kCacheLine + 1 + (last % kCacheLine != 0 ? 1 : 0);
  return std::min(random_number(lot, window) % lines * kCacheLine, last);
}

}  // namespace

uint64_t operation_lot(const EpochKey& key, uint32_t bucket, uint64_t sequence) {
  std::array<std::byte, sizeof(EpochKey) + sizeof(bucket) + sizeof(sequence)> name;
  std::memcpy(name.data(), key.data(), key.size());
  std::memcpy(name.data() + key.size(), &bucket, sizeof(bucket));
  std::memcpy(name.data() + key.size() + sizeof(bucket), &sequence, sizeof(sequence));
  return xxh64(name, 0);
}

uint64_t hash_result(std::span<const std::byte> result, uint64_t lot, uint32_t flags) {
  const uint64_t seed = lot + flags;
  if (result.size() <= kSampledBytes) {
    return xxh64(result, seed);
  }
  std::array<const std::byte*, kWindows> windows;
  for (size_t i = 0; i < kWindows; ++i) {
    windows[i] = result.data() + window_offset(result.size(), lot, i);
    for (size_t line = 0; line < kSampleWindow; line += kCacheLine) {
      __builtin_prefetch(windows[i] + line);  // the result is rarely in a cache: all misses at a time
    }
  }
  uint64_t hash = seed;
  for (const std::byte* window : windows) {
    hash = xxh64({window, kSampleWindow}, hash);
  }
  return hash;
}

void ResultSamples::keep(uint64_t lot, const ResultSample& sample) {
  const auto lower = [](const Entry& a, const Entry& b) { return a.lot < b.lot; };
  if (!wants(lot)) {
    return;
  }
  if (count_ == kMost) {
    std::pop_heap(heap_.begin(), heap_.end(), lower);
    --count_;
  }
  heap_[count_++] = {lot, sample};
  std::push_heap(heap_.begin(), heap_.begin() + static_cast<ptrdiff_t>(count_), lower);
}

std::vector<ResultSample> ResultSamples::take() {
  std::vector<ResultSample> samples;
  samples.reserve(count_);
  for (size_t i = 0; i < count_; ++i) {
    samples.push_back(heap_[i].sample);
  }
  count_ = 0;
  return samples;
}

}  // namespace gradwire::engine
