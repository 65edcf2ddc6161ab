// Buckets that are cut at the ranks' shards: geometry and sums.
#include <numeric>

#include "compress/geometry.h"
#include "tests/compress/ring_fixture.h"

namespace gradwire::compress {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt32, Dtype::kInt64, Dtype::kUint8};

// Ranks of node i own chunk i + 1, as an engine would have it; ranks go to nodes by `node_of`.
std::vector<uint32_t> chunks_of(std::span<const uint32_t> node_of, uint32_t nodes) {
  std::vector<uint32_t> chunks;
  for (const uint32_t node : node_of) {
    chunks.push_back((node + 1) % nodes);
  }
  return chunks;
}

void expect_covered(const Geometry& geometry, uint64_t elements, std::span<const uint32_t> rank_chunk,
                    uint64_t element_bytes, uint32_t max_message_bytes) {
  const uint64_t shard = elements / rank_chunk.size();
  std::vector<uint32_t> seen(elements);
  for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
    const auto segments = geometry.segments(chunk);
    ASSERT_FALSE(segments.empty());
    for (uint32_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      ASSERT_EQ(segment.chunk, chunk);
      ASSERT_EQ(segment.index, i);
      ASSERT_EQ(segment.max_bytes, segment.elements * element_bytes);
      ASSERT_LE(segment.max_bytes, max_message_bytes);
      if (segment.elements == 0) {
        ASSERT_EQ(segments.size(), 1U);
        continue;
      }
      const uint64_t rank = segment.first_element / shard;
      ASSERT_EQ(rank_chunk[rank], chunk);
      ASSERT_LE(segment.first_element + segment.elements, (rank + 1) * shard);
      for (uint64_t e = 0; e < segment.elements; ++e) {
        seen[segment.first_element + e] += 1;
      }
    }
  }
  for (const uint32_t times : seen) {
    ASSERT_EQ(times, 1U);
  }
}

TEST(ShardReducer, CutsEveryShardIntoWholeSegmentsOfItsChunk) {
  const std::vector<std::vector<uint32_t>> placements = {{0},       {0, 0, 1, 1},    {0, 1, 0, 1},
                                                         {2, 2, 2}, {0, 1, 2, 0, 0}, {1, 1, 1, 1, 1, 1, 1}};
  for (const Dtype dtype : kDtypes) {
    for (const auto& rank_chunk : placements) {
      for (const uint64_t shard : {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{70001}}) {
        const uint64_t elements = shard * rank_chunk.size();
        const auto made = make_shard_reducer(shape_of({elements}, 3, 70000), dtype, rank_chunk);
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_EQ((*made)->geometry().chunks(), 3U);
        expect_covered((*made)->geometry(), elements, rank_chunk, dtype_size(dtype), 70000);
      }
    }
  }
}

TEST(ShardReducer, NeighbouringShardsOfOneChunkStayApart) {
  const std::vector<uint32_t> rank_chunk = {0, 0};
  const auto made = std::move(make_shard_reducer(shape_of({20}, 1), Dtype::kFloat32, rank_chunk)).value();
  ASSERT_EQ(made->geometry().segments(0).size(), 2U);
  EXPECT_EQ(made->geometry().segments(0)[1].first_element, 10U);
}

template <typename T>
void expect_sums(Dtype dtype, uint32_t nodes, uint64_t shard) {
  const std::vector<uint32_t> node_of = {0, 1 % nodes, 0, 2 % nodes, 1 % nodes};
  const auto rank_chunk = chunks_of(node_of, nodes);
  const BucketShape shape = shape_of({shard * rank_chunk.size()}, nodes);
  std::vector<std::unique_ptr<BucketReducer>> reducers;
  std::vector<std::vector<const void*>> locals;
  std::vector<T> gradient(elements_of(shape));
  std::iota(gradient.begin(), gradient.end(), T{0});
  std::vector<std::vector<T>> results(nodes, std::vector<T>(gradient.size()));
  std::vector<void*> starts;
  for (uint32_t i = 0; i < nodes; ++i) {
    reducers.push_back(std::move(make_shard_reducer(shape, dtype, rank_chunk)).value());
    locals.emplace_back(i + 1, gradient.data());
    starts.push_back(results[i].data());
  }
  LoopbackRing ring(std::move(reducers));
  ASSERT_TRUE(*ring.run(operation(ReduceOp::kSum, nodes * (nodes + 1) / 2), locals, starts));
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_EQ(result[i], static_cast<T>(gradient[i] * static_cast<T>(nodes * (nodes + 1) / 2)));
    }
  }
}

TEST(ShardReducer, SumsEveryDataType) {
  for (uint32_t nodes = 1; nodes <= 6; ++nodes) {
    for (const uint64_t shard : {uint64_t{0}, uint64_t{1}, uint64_t{1001}, uint64_t{40000}}) {
      expect_sums<float>(Dtype::kFloat32, nodes, shard);
      expect_sums<double>(Dtype::kFloat64, nodes, shard);
      expect_sums<int32_t>(Dtype::kInt32, nodes, shard);
      expect_sums<int64_t>(Dtype::kInt64, nodes, shard);
      expect_sums<uint8_t>(Dtype::kUint8, nodes, shard);
    }
  }
}

TEST(ShardReducer, RefusesWhatHasNoEqualShardsAndSaysWhy) {
  const std::vector<uint32_t> rank_chunk = {0, 1, 1};
  const auto refused = make_shard_reducer(shape_of({10}, 2), Dtype::kFloat32, rank_chunk);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("10 elements"), std::string::npos);
  EXPECT_NE(refused.status().message().find("pad"), std::string::npos);
  const auto code = [](const BucketShape& shape, std::vector<uint32_t> chunks) {
    return make_shard_reducer(shape, Dtype::kFloat32, chunks).status().code();
  };
  EXPECT_EQ(code(shape_of({10}, 2), {}), Code::kInvalidArgument);
  EXPECT_EQ(code(shape_of({10}, 2), {0, 2}), Code::kInvalidArgument);
  EXPECT_EQ(code(shape_of({10}, 0), {0}), Code::kInvalidArgument);
  EXPECT_EQ(make_shard_reducer(shape_of({9}, 2), static_cast<Dtype>(77), rank_chunk).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::compress
