// Submissions, counters and memory from clients that mean harm: they end their own job, nobody else's. Meant
// for the address sanitizer as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/sim/other_job.h"

namespace gradwire::sim {
namespace {

using testing::HasSubstr;

TEST(Hostile, RandomSubmissionsEndTheirJobAndNoOther) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    std::mt19937_64 random(seed);
    Cluster cluster(jittery_cluster_of(1 + seed % 2, 2, seed));
    cluster.add_bucket(1, bucket_of(100));
    OtherJob other(cluster, 2, 1);
    layout::Submission hostile = cluster.submission(0, 1, Request{});
    auto* const bytes = reinterpret_cast<uint8_t*>(&hostile);
    if (seed % 2 == 0) {
      for (size_t i = 8; i < sizeof(hostile); ++i) {
        bytes[i] = static_cast<uint8_t>(random());
      }
    } else {
      // All fields but user_data are checked.
      const size_t at = 8 + random() % (sizeof(hostile) - 8);
      bytes[at] ^= static_cast<uint8_t>(1 + random() % 255);
    }
    cluster.submit_raw(0, hostile);
    cluster.run_until([&] { return cluster.completed(1); }, kSecond);
    other.submit_all(0);
    cluster.settle();
    EXPECT_TRUE(other.complete(0));
    // A changed scale or reduction may be valid; then the other rank's word is missing or against it.
    if (cluster.failure().ok()) {
      cluster.submit(1, 1);
      cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
    }
    EXPECT_THAT(cluster.failure().message(), HasSubstr("rank 0"));
  }
}

TEST(Hostile, AScaleOutsideItsRangeEndsTheJobAndIsNamed) {
  for (const auto& [scale, text] : {std::pair(5e-324, "scale 4.94065645841247e-324 is"),
                                    std::pair(0x1p61, "scale 2.30584300921369e+18 is")}) {
    Cluster cluster(jittery_cluster_of(1, 1, 1));
    cluster.add_bucket(1, bucket_of(100));
    layout::Submission hostile = cluster.submission(0, 1, Request{});
    hostile.scale = scale;
    cluster.submit_raw(0, hostile);
    cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
    EXPECT_THAT(cluster.failure().message(),
                testing::AllOf(HasSubstr("rank 0"), HasSubstr(text), HasSubstr("not from 2^-60 to 2^60")));
  }
}

TEST(Hostile, CountersThatMakeNoSenseEndTheJob) {
  for (const bool submissions : {true, false}) {
    Cluster cluster(jittery_cluster_of(2, 2, 1));
    cluster.add_bucket(1, bucket_of(100));
    if (submissions) {
      cluster.rank(1).session->submissions.tail.store(layout::kRingCapacity + 1, std::memory_order_relaxed);
    } else {
      cluster.rank(1).session->completions.head.store(77, std::memory_order_relaxed);
    }
    cluster.submit(0, 1);
    cluster.submit(2, 1);
    cluster.submit(3, 1);
    if (!submissions) {
      cluster.submit(1, 1);
    }
    cluster.run_until([&] { return !cluster.failure().ok(); }, kSecond);
    EXPECT_THAT(cluster.failure().message(), HasSubstr("rank 1"));
    EXPECT_EQ(cluster.failure().code(), Code::kCorrupt);
    cluster.settle();
    EXPECT_NE(cluster.rank(0).completion(1), nullptr);
  }
}

TEST(Hostile, AClientThatFloodsAnAbortedJobIsIgnoredInTheEnd) {
  Cluster cluster(jittery_cluster_of(1, 1, 1));
  cluster.node(0).engine->abort_job(1, Status(Code::kAborted, "over"));
  Rank& rank = cluster.rank(0);
  // It never takes its completions.
  for (uint64_t i = 0; i < 3 * layout::kRingCapacity; ++i) {
    bool wake = false;
    rank.submissions.push(layout::Submission{}, &wake);
    cluster.node(0).engine->poll();
  }
  for (int i = 0; i < 10; ++i) {
    cluster.node(0).engine->poll();
  }
  EXPECT_EQ(cluster.node(0).engine->poll(), 0u);
}

// Random bytes over everything that the client has mapped: header, counters, slots.
void scribble(Rank& rank, std::mt19937_64& random) {
  auto* const bytes = rank.memory.get();
  switch (random() % 3) {
    case 0:  // everything
      for (size_t at = 0; at < layout::kSessionBytes; at += 8) {
        const uint64_t word = random();
        std::memcpy(bytes + at, &word, sizeof(word));
      }
      break;
    case 1:  // the header with both rings' counters
      for (size_t at = 0; at < sizeof(layout::SessionHeader); at += 8) {
        const uint64_t word = random();
        std::memcpy(bytes + at, &word, sizeof(word));
      }
      break;
    default:  // slots behind counters that make sense
      for (size_t at = layout::kSubmissionOffset; at < layout::kSubmissionOffset + 64 * 64; at += 8) {
        const uint64_t word = random() % 2 == 0 ? random() % 5 : random();
        std::memcpy(bytes + at, &word, sizeof(word));
      }
      rank.session->submissions.tail.fetch_add(random() % 64, std::memory_order_relaxed);
  }
}

TEST(Hostile, AClientThatScribblesOverItsSessionEndsItsOwnJobOnly) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    ClusterOptions options = jittery_cluster_of(2, 2, seed);
    options.network.bytes_per_second = 1'000'000'000;
    Cluster cluster(options);
    OtherJob other(cluster);
    other.add_bucket(1, seed % 2 == 0 ? 100 : 60'000);
    cluster.add_bucket(1, bucket_of(60'000));
    const auto hostile = static_cast<uint32_t>(random() % 4);
    const std::string name = "rank " + std::to_string(hostile);
    for (uint32_t r = 0; r < 4; ++r) {
      if (r != hostile ||
          seed % 3 != 0) {  // its own submission is in flight, or overwritten before it is seen
        cluster.submit(r, 1);
      }
    }
    uint64_t wait = random() % 20;
    EXPECT_GT(other.run(1, 6,
                        [&] {
                          if (wait == 0) {
                            scribble(cluster.rank(hostile), random);
                            wait = random() % 4;
                          } else {
                            --wait;
                          }
                        }),
              0u)
        << "seed " << seed;
    EXPECT_TRUE(other.failures(0).empty() && other.failures(1).empty()) << "seed " << seed;
    EXPECT_FALSE(cluster.failure().ok()) << "seed " << seed;
    EXPECT_THAT(cluster.failure().message(), HasSubstr(name)) << "seed " << seed;
    for (uint32_t r = 0; r < 4; ++r) {  // who plays by the rules has heard of it
      if (r != hostile) {
        EXPECT_NE(cluster.rank(r).session->abort_status.load(std::memory_order_relaxed), 0);
        EXPECT_NE(cluster.rank(r).completion(1), nullptr);
      }
    }
  }
}

TEST(Hostile, AClientThatScribblesOverItsGradientsSpoilsOnlyValues) {
  Cluster cluster(jittery_cluster_of(3, 1, 1));
  cluster.add_bucket(1, bucket_of(100'000, "laco"));
  std::mt19937 random(3);
  cluster.submit_all(1);
  cluster.run_until([&] {
    for (uint32_t r = 0; r < 3; ++r) {
      for (int i = 0; i < 1000; ++i) {
        const uint32_t bits = static_cast<uint32_t>(random());
        std::memcpy(&cluster.rank(r).gradients[1]->as<float>()[random() % 100'000], &bits, 4);
      }
    }
    return cluster.completed(1);
  });
  EXPECT_TRUE(cluster.failure().ok()) << cluster.failure().message();
  for (uint32_t n = 1; n < 3; ++n) {
    EXPECT_EQ(std::memcmp(cluster.node(n).results[1]->data(), cluster.node(0).results[1]->data(), 400'000),
              0);
  }
}

}  // namespace
}  // namespace gradwire::sim
