#include "transport/memory/segment_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace gradwire::transport {
namespace {

TEST(SegmentPool, SegmentsAreAlignedWritableAndDistinct) {
  SegmentPool pool(1'000);
  std::set<std::byte*> seen;
  for (int i = 0; i < 5'000; ++i) {
    std::byte* segment = pool.acquire();
    ASSERT_NE(segment, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment) % 64, 0u);
    std::memset(segment, i, 1'000);
    const auto [at, fresh] = seen.insert(segment);
    ASSERT_TRUE(fresh);
    if (at != seen.begin()) {
      EXPECT_GE(*at - *std::prev(at), 1'000);
    }
  }
  EXPECT_EQ(pool.in_use(), 5'000u);
}

TEST(SegmentPool, LastReleasedIsReusedFirstAndTheSteadyStateDoesNotGrow) {
  SegmentPool pool(130'048);
  std::byte* first = pool.acquire();
  std::byte* second = pool.acquire();
  const auto growths = pool.growths();
  for (int i = 0; i < 1'000; ++i) {
    pool.release(first);
    pool.release(second);
    EXPECT_EQ(pool.acquire(), second);
    EXPECT_EQ(pool.acquire(), first);
  }
  EXPECT_EQ(pool.growths(), growths);
}

TEST(SegmentPool, SlabsAreAnnouncedAndReservedInAdvance) {
  std::vector<std::span<std::byte>> slabs;
  SegmentPool pool(5 << 20, [&](std::span<std::byte> slab) { slabs.push_back(slab); });
  ASSERT_TRUE(pool.reserve(3).ok());
  const auto growths = pool.growths();
  EXPECT_EQ(slabs.size(), growths);
  for (int i = 0; i < 3; ++i) {
    std::byte* segment = pool.acquire();
    bool inside = false;
    for (const auto& slab : slabs) {
      inside |= segment >= slab.data() && segment + (5 << 20) <= slab.data() + slab.size();
    }
    EXPECT_TRUE(inside);
  }
  EXPECT_EQ(pool.growths(), growths);
}

}  // namespace
}  // namespace gradwire::transport
