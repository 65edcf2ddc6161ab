#include "compress/geometry.h"

#include <gtest/gtest.h>

#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

// Segments must tile the bucket in order, chunk by chunk, within the message limit.
void expect_tiling(const BucketReducer& reducer, const BucketShape& shape) {
  const uint64_t total = elements_of(shape);
  const Geometry& geometry = reducer.geometry();
  ASSERT_EQ(geometry.chunks(), shape.nodes);
  uint64_t at = 0;
  uint32_t block = 0;
  for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
    ASSERT_EQ(at, chunk_begin(total, shape.nodes, chunk));
    ASSERT_FALSE(geometry.segments(chunk).empty());
    uint32_t index = 0;
    for (const Segment& segment : geometry.segments(chunk)) {
      ASSERT_EQ(segment.chunk, chunk);
      ASSERT_EQ(segment.index, index++);
      ASSERT_EQ(segment.first_element, at);
      ASSERT_EQ(segment.first_block, block);
      ASSERT_LE(segment.max_bytes, shape.max_message_bytes);
      ASSERT_TRUE(segment.elements > 0 || geometry.segments(chunk).size() == 1);
      ASSERT_EQ(segment.elements == 0, segment.max_bytes == 0);
      at += segment.elements;
      block += segment.blocks;
    }
  }
  ASSERT_EQ(at, total);
}

TEST(Geometry, ChunksBeginAtMultiplesOf64AndCoverTheBucket) {
  for (const uint64_t elements : {0ULL, 1ULL, 63ULL, 64ULL, 65ULL, 1000ULL, 65537ULL}) {
    for (uint32_t chunks = 1; chunks <= 9; ++chunks) {
      EXPECT_EQ(chunk_begin(elements, chunks, 0), 0U);
      EXPECT_EQ(chunk_begin(elements, chunks, chunks), elements);
      for (uint32_t c = 0; c < chunks; ++c) {
        const uint64_t begin = chunk_begin(elements, chunks, c);
        EXPECT_LE(begin, chunk_begin(elements, chunks, c + 1));
        EXPECT_TRUE(begin % 64 == 0 || begin == elements);
      }
    }
  }
  EXPECT_EQ(chunk_begin(1000, 3, 1), 64U * (1 * 16 / 3));
}

TEST(Geometry, SegmentsTileEveryShapeAndCodec) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {}, {0}, {1}, {3, 0, 64, 1}, {100000}, {65535, 65536, 65537}, {1, 300000, 2, 70000, 5, 5, 5}};
  for (const auto& sizes : shapes) {
    for (const uint32_t nodes : {1U, 2U, 3U, 8U, 64U}) {
      for (const uint32_t limit : {70000U, 130048U, 1000000U}) {
        const BucketShape shape = shape_of(sizes, nodes, limit);
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt64, Dtype::kUint8}) {
          expect_tiling(**make_exact_reducer(shape, dtype), shape);
        }
        for (const char* name : {"none", "l8", "lads", "laco"}) {
          std::vector<CodecSettings> settings(sizes.size(), codec(name));
          expect_tiling(**make_compressor(shape, settings), shape);
        }
      }
    }
  }
}

TEST(Geometry, ExactSegmentsFillTheMessage) {
  const BucketShape shape = shape_of({1000000}, 1, 130048);
  const auto reducer = make_exact_reducer(shape, Dtype::kFloat32);
  EXPECT_EQ((*reducer)->geometry().segments(0)[0].max_bytes, 130048U);
  const auto l8 = make_compressor(shape, std::vector<CodecSettings>{codec("l8")});
  EXPECT_EQ((*l8)->geometry().segments(0)[0].elements, 31U * 4096);
}

TEST(Geometry, AHundredThousandTinyLayersStayCheap) {
  const std::vector<uint64_t> sizes(100000, 1);
  const BucketShape shape = shape_of(sizes, 4);
  const auto none = make_compressor(shape, std::vector<CodecSettings>(sizes.size(), codec("none")));
  expect_tiling(**none, shape);
  uint32_t blocks = 0;
  for (uint32_t c = 0; c < 4; ++c) {
    for (const Segment& segment : (*none)->geometry().segments(c)) {
      blocks += segment.blocks;
    }
  }
  EXPECT_EQ(blocks, 4U) << "raw layers of a chunk are one run";
  expect_tiling(**make_compressor(shape, std::vector<CodecSettings>(sizes.size(), codec("laco"))), shape);
}

TEST(Geometry, RefusesShapesItCannotCut) {
  EXPECT_EQ(make_exact_reducer(shape_of({1}, 0), Dtype::kFloat32).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(make_exact_reducer(shape_of({1}, 1, 69999), Dtype::kFloat32).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(make_exact_reducer(shape_of({UINT64_MAX, 2}, 1), Dtype::kFloat32).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::compress
