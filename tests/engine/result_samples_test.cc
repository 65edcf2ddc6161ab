#include "daemon/engine/result_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "config/base/xxh64.h"

namespace gradwire::engine {
namespace {

// The bytes and hashes of the self-test in the reference implementation.
TEST(Xxh64, GivesTheReferencesHashes) {
  constexpr uint64_t kSeed = 2654435761;
  std::vector<std::byte> bytes;
  for (uint64_t state = kSeed; bytes.size() < 222; state *= 0x9e3779b185ebca8d) {
    bytes.push_back(static_cast<std::byte>(state >> 56));
  }
  const auto hash = [&bytes](size_t count, uint64_t seed) {
    return xxh64(std::span(bytes).first(count), seed);
  };
  EXPECT_EQ(hash(0, 0), 0xef46db3751d8e999);
  EXPECT_EQ(hash(0, kSeed), 0xac75fda2929b17ef);
  EXPECT_EQ(hash(1, 0), 0xe934a84adb052768);
  EXPECT_EQ(hash(14, 0), 0x8282dcc4994e35c8);
  EXPECT_EQ(hash(14, kSeed), 0xc3bd6bf63deb6df0);
  EXPECT_EQ(hash(222, 0), 0xb641ae8cb691c174);
  EXPECT_EQ(hash(222, kSeed), 0x20cb8ab7ae10c14a);
}

EpochKey key_of(uint8_t fill) {
  EpochKey key;
  key.fill(static_cast<std::byte>(fill));
  return key;
}

TEST(ResultSamples, LotsDifferByKeyBucketAndSequence) {
  std::set<uint64_t> lots;
  for (const uint8_t key : {1, 2}) {
    for (const uint32_t bucket : {1u, 2u, 256u}) {
      for (const uint64_t sequence : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 40}) {
        lots.insert(operation_lot(key_of(key), bucket, sequence));
        EXPECT_EQ(operation_lot(key_of(key), bucket, sequence), operation_lot(key_of(key), bucket, sequence));
      }
    }
  }
  EXPECT_EQ(lots.size(), 18u);
}

TEST(ResultSamples, EveryByteOfASmallResultCounts) {
  std::mt19937 random(1);
  for (const size_t size : {size_t{1}, size_t{3}, size_t{31}, size_t{32}, size_t{777}, kSampledBytes}) {
    std::vector<std::byte> result(size);
    std::ranges::generate(result, [&random] { return static_cast<std::byte>(random()); });
    const uint64_t hash = hash_result(result, 5, 0);
    EXPECT_NE(hash, hash_result(result, 5, 1)) << "the verdict counts";
    for (size_t i = 0; i < size; ++i) {
      result[i] ^= std::byte{4};
      EXPECT_NE(hash_result(result, 5, 0), hash) << "byte " << i << " of " << size;
      result[i] ^= std::byte{4};
    }
    EXPECT_EQ(hash_result(result, 5, 0), hash);
  }
}

// Which bytes of a large result count changes from operation to operation: in the end all do.
TEST(ResultSamples, EveryByteOfALargeResultIsSampledByTheWay) {
  std::vector<std::byte> result(2 * kSampledBytes + 77);
  std::vector<bool> seen(result.size());
  for (uint64_t lot = 0; lot < 24; ++lot) {
    const uint64_t hash = hash_result(result, lot, 0);
    size_t sampled = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] ^= std::byte{128};
      const bool counts = hash_result(result, lot, 0) != hash;
      result[i] ^= std::byte{128};
      seen[i] = seen[i] || counts;
      sampled += counts ? 1 : 0;
    }
    EXPECT_LE(sampled, kSampledBytes);
    EXPECT_GE(sampled, kSampledBytes / 4);
  }
  EXPECT_EQ(std::ranges::count(seen, false), 0);
}

TEST(ResultSamples, OfManyThoseWithTheLowestLotsAreKept) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> lots(1000);
  std::ranges::generate(lots, random);
  ResultSamples samples;
  for (const uint64_t lot : lots) {
    if (samples.wants(lot)) {
      samples.keep(lot, {1, lot, lot});
    }
  }
  samples.keep(UINT64_MAX, {1, 1, 1});
  std::ranges::sort(lots);
  std::vector<uint64_t> kept;
  for (const ResultSample& sample : samples.take()) {
    kept.push_back(sample.sequence);
  }
  std::ranges::sort(kept);
  EXPECT_EQ(kept, std::vector<uint64_t>(lots.begin(), lots.begin() + ResultSamples::kMost));
  EXPECT_TRUE(samples.take().empty());
  EXPECT_TRUE(samples.wants(UINT64_MAX));
}

}  // namespace
}  // namespace gradwire::engine
