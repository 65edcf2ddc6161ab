// The full product of nodes, local ranks, codecs and shapes: all ranks get the same bits, every run gives the
// same bits, and exact operations give the exact result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

struct Kind {
  const char* name;
  const char* codec;  // empty: exact reducer
  compress::Dtype dtype;
  engine::Algorithm algorithm = engine::Algorithm::kRing;
};
constexpr Kind kKinds[] = {{"none", "none", compress::Dtype::kFloat32},
                           {"l8", "l8", compress::Dtype::kFloat32},
                           {"lads", "lads", compress::Dtype::kFloat32},
                           {"laco", "laco", compress::Dtype::kFloat32},
                           {"exact", "", compress::Dtype::kFloat32},
                           {"int32", "", compress::Dtype::kInt32},
                           {"int64", "", compress::Dtype::kInt64},
                           {"none_direct", "none", compress::Dtype::kFloat32, engine::Algorithm::kDirect},
                           {"laco_direct", "laco", compress::Dtype::kFloat32, engine::Algorithm::kDirect}};

const std::vector<std::vector<uint64_t>> kShapes = {{},
                                                    {0},
                                                    {1},
                                                    {3},
                                                    {0, 0, 0},
                                                    {777},
                                                    {65535},
                                                    {65536},
                                                    {65537},
                                                    {1, 0, 3, 64, 1000},
                                                    {5000, 1, 40961, 10, 0, 2049}};

class RingProduct : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, size_t>> {};

template <typename T>
void fill(Cluster& cluster, uint32_t bucket, uint64_t seed) {
  for (uint32_t i = 0; i < cluster.world(); ++i) {
    std::minstd_rand random(static_cast<uint32_t>(seed * 1000 + i + 1));
    for (T& value : cluster.rank(i).gradients[bucket]->as<T>()) {
      const auto integer = static_cast<int32_t>(random() % 20001) - 10000;
      value = static_cast<T>(std::is_integral_v<T> ? integer : integer * 1e-4 * (1 + integer % 7));
    }
  }
}

template <typename T>
void expect_sum(Cluster& cluster, uint32_t bucket, bool average) {
  const std::span<T> result = cluster.node(0).results[bucket]->as<T>();
  for (size_t i = 0; i < result.size(); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (uint32_t r = 0; r < cluster.world(); ++r) {
      const double value = static_cast<double>(cluster.rank(r).gradients[bucket]->as<T>()[i]);
      sum += value;
      magnitude += std::abs(value);
    }
    const double divisor = average ? cluster.world() : 1;
    if constexpr (std::is_integral_v<T>) {
      ASSERT_EQ(static_cast<double>(result[i]), sum) << i;
    } else {
      const double bound = 1.2e-7 * magnitude * cluster.world() / divisor;
      ASSERT_NEAR(result[i], sum / divisor, bound) << i;
    }
  }
}

// Every node's results of two operations a bucket, one after another.
std::vector<std::byte> run(uint32_t nodes, uint32_t locals, const Kind& kind, uint64_t seed, bool check) {
  ClusterOptions options;
  options.nodes = nodes;
  options.local_ranks = locals;
  options.network.seed = seed;
  options.network.jitter_ns = 50'000;
  options.network.max_payload = 70'000;
  options.network.send_window = 1 + seed % 4;
  Cluster cluster(options);
  for (uint32_t i = 0; i < kShapes.size(); ++i) {
    BucketShape shape;
    shape.name = std::string("bucket").append(std::to_string(i + 1));
    shape.layers = kShapes[i];
    shape.dtype = kind.dtype;
    shape.codec = kShapes[i].empty() ? "" : kind.codec;
    shape.algorithm = shape.codec.empty() ? engine::Algorithm::kRing : kind.algorithm;
    shape.settings = settled();
    cluster.add_bucket(i + 1, shape);
  }
  std::vector<std::byte> all;
  for (uint32_t step = 0; step < 2; ++step) {
    const bool average = step == 1 && kind.dtype == compress::Dtype::kFloat32;
    Request request;
    request.reduce_op = average ? compress::ReduceOp::kAverage : compress::ReduceOp::kSum;
    for (uint32_t bucket = 1; bucket <= kShapes.size(); ++bucket) {
      kind.dtype == compress::Dtype::kInt64   ? fill<int64_t>(cluster, bucket, step + bucket)
      : kind.dtype == compress::Dtype::kInt32 ? fill<int32_t>(cluster, bucket, step + bucket)
                                              : fill<float>(cluster, bucket, step + bucket);
      cluster.submit_all(bucket, request);
    }
    for (uint32_t bucket = 1; bucket <= kShapes.size(); ++bucket) {
      if (!cluster.finish(bucket)) {
        return {};
      }
      Region& first = *cluster.node(0).results[bucket];
      for (uint32_t i = 0; i < nodes; ++i) {
        Region& region = *cluster.node(i).results[bucket];
        EXPECT_EQ(std::memcmp(region.data(), first.data(), first.size()), 0) << "node " << i;
        EXPECT_EQ(cluster.rank(i * locals).completion(bucket)->flags, 0u);
      }
      all.insert(all.end(), first.data(), first.data() + first.size());
      if (check && std::strlen(kind.codec) == 0) {
        kind.dtype == compress::Dtype::kInt64   ? expect_sum<int64_t>(cluster, bucket, average)
        : kind.dtype == compress::Dtype::kInt32 ? expect_sum<int32_t>(cluster, bucket, average)
                                                : expect_sum<float>(cluster, bucket, average);
      } else if (check && std::string(kind.codec) == "none") {
        expect_sum<float>(cluster, bucket, average);
      }
    }
  }
  const size_t filled =
      static_cast<size_t>(std::count_if(kShapes.begin(), kShapes.end(), [](const auto& layers) {
        return std::accumulate(layers.begin(), layers.end(), uint64_t{0}) > 0;
      }));
  EXPECT_EQ(cluster.compared_results(), 2 * filled * (nodes - 1));
  return all;
}

TEST_P(RingProduct, GivesAllRanksTheSameBitsInEveryRun) {
  const auto [nodes, locals, kind] = GetParam();
  const std::vector<std::byte> first = run(nodes, locals, kKinds[kind], 1, true);
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first, run(nodes, locals, kKinds[kind], 2, false));
}

#ifdef GRADWIRE_SANITIZED  // ten times slower: fewer shapes have the same code paths
const auto kNodes = testing::Values(1u, 2u, 3u, 5u, 8u);
const auto kLocals = testing::Values(1u, 3u);
#else
const auto kNodes = testing::Range(1u, 9u);
const auto kLocals = testing::Range(1u, 5u);
#endif

INSTANTIATE_TEST_SUITE_P(Everything, RingProduct,
                         testing::Combine(kNodes, kLocals, testing::Range(size_t{0}, std::size(kKinds))),
                         [](const testing::TestParamInfo<RingProduct::ParamType>& test) {
                           std::string name = "nodes";
                           name += std::to_string(std::get<0>(test.param));
                           name += "_locals";
                           name += std::to_string(std::get<1>(test.param));
                           name += "_";
                           return name + kKinds[std::get<2>(test.param)].name;
                         });

}  // namespace
}  // namespace gradwire::sim
