// Messages from somebody who means harm, or from a broken machine: never a crash, never a silently wrong
// result. Meant for the address sanitizer as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "client/include/gradwire/gradwire.h"
#include "daemon/engine/message.h"
#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {
namespace {

using testing::HasSubstr;

enum class Harm {
  kHeaderBit,
  kHeaderBitChecked,
  kHeaderLength,
  kPayloadLength,
  kTwice,
  kOtherKey,
  kOlder,
  kCount
};

// Changes one message, the `victim`-th that leaves.
class Attacker {
 public:
  Attacker(uint64_t seed, Harm harm, uint64_t victim) : random_(seed), harm_(harm), victim_(victim) {}

  int operator()(transport::SimMessage& message) {
    const bool hit = count_++ == victim_;
    if (count_ == 1 + victim_ / 2) {
      older_ = message.header;
      older_payload_ = message.payload;
    }
    if (!hit) {
      return 1;
    }
    happened = true;
    switch (harm_) {
      case Harm::kHeaderBit:
        flip(message.header);
        break;
      case Harm::kHeaderBitChecked:
        // The flag "not finite" may be a lie that only its author can tell: not that bit.
        do {
          flip(message.header);
        } while (message.header[offsetof(engine::MessageHeader, flags)] == std::byte{1});
        sign(message.header);
        break;
      case Harm::kHeaderLength:
        message.header.resize(random_() % 129);
        break;
      case Harm::kPayloadLength: {
        const size_t size = random_() % (message.payload.size() + 100);
        const auto bytes = static_cast<uint32_t>(size);
        message.payload.resize(std::min<size_t>(size, 70'000));
        std::memcpy(message.header.data() + offsetof(engine::MessageHeader, payload_bytes), &bytes, 4);
        sign(message.header);
        break;
      }
      case Harm::kTwice:
        return 2;
      case Harm::kOtherKey:
        message.header[random_() % 16] ^= std::byte{1};
        break;
      case Harm::kOlder:
        message.header = older_;
        message.payload = older_payload_;
        break;
      case Harm::kCount:
        break;
    }
    return 1;
  }

  bool happened = false;

 private:
  void flip(std::vector<std::byte>& bytes) {
    const uint64_t bit = random_() % (8 * bytes.size());
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  static void sign(std::vector<std::byte>& bytes) {
    engine::MessageHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    header.checksum = engine::message_checksum(header);
    std::memcpy(bytes.data(), &header, sizeof(header));
  }

  std::mt19937_64 random_;
  Harm harm_;
  uint64_t victim_;
  uint64_t count_ = 0;
  std::vector<std::byte> older_, older_payload_;
};

template <typename T = int32_t>
void check_results(Cluster& cluster, uint32_t bucket, const std::string& what) {
  for (uint32_t n = 0; n < cluster.nodes(); ++n) {
    const auto values = cluster.node(n).results[bucket]->as<T>();
    for (size_t k = 0; k < values.size(); ++k) {
      T sum = 0;
      for (uint32_t r = 0; r < cluster.world(); ++r) {
        sum += cluster.rank(r).gradients[bucket]->as<T>()[k];
      }
      ASSERT_EQ(values[k], sum) << what;
    }
  }
}

// True if the job noticed: it ended, or an operation did not. Of int32_t around the ring, of float straight
// to the owners.
template <typename T>
bool attack(uint64_t seed, Harm harm) {
  std::mt19937_64 random(seed);
  const auto nodes = static_cast<uint32_t>(2 + random() % 4);
  Cluster cluster(jittery_cluster_of(nodes, 1, seed));
  const std::string what =
      "seed " + std::to_string(seed) + ", harm " + std::to_string(static_cast<int>(harm));
  for (uint32_t bucket = 1; bucket <= 2; ++bucket) {
    BucketShape shape;
    shape.name = "gradients";
    shape.layers = {bucket == 1 ? 300u : 60'000u};
    if constexpr (std::is_integral_v<T>) {
      shape.dtype = compress::Dtype::kInt32;
    } else {
      shape.codec = "none";
      shape.algorithm = engine::Algorithm::kDirect;
    }
    cluster.add_bucket(bucket, shape);
  }
  Attacker attacker(seed, harm, random() % (12 * nodes));
  cluster.network().set_filter([&attacker](transport::SimMessage& message) { return attacker(message); });
  // Steps with an allreduce of both buckets and a barrier; stops when the job has ended.
  for (uint32_t step = 0; step < 3 && cluster.failure().ok(); ++step) {
    for (uint32_t bucket = 0; bucket <= 2; ++bucket) {
      for (uint32_t r = 0; bucket > 0 && r < nodes; ++r) {
        for (T& value : cluster.rank(r).gradients[bucket]->as<T>()) {
          value = static_cast<T>(random() % 1000);
        }
      }
      Request request;
      request.operation = bucket == 0 ? layout::kOpBarrier : layout::kOpAllreduce;
      cluster.submit_all(bucket, request);
    }
    cluster.run_until([&] { return cluster.completed(0) && cluster.completed(1) && cluster.completed(2); },
                      10 * kSecond);
    for (uint32_t bucket = 1; bucket <= 2; ++bucket) {
      bool good = true;
      for (uint32_t r = 0; r < nodes; ++r) {
        const layout::Completion* const completion = cluster.rank(r).completion(bucket);
        good = good && completion != nullptr && completion->status == 0 && completion->flags == 0;
      }
      if (good) {
        check_results<T>(cluster, bucket, what);
      } else if (cluster.failure().ok()) {
        // A message was dropped: the clocks say so, and the deadline would end the job.
        EXPECT_TRUE(attacker.happened) << what;
        bool stalled = false;
        for (uint32_t n = 0; n < nodes; ++n) {
          stalled = stalled || !cluster.node(n).stalls.empty();
        }
        EXPECT_TRUE(stalled) << what;
        return true;
      }
    }
  }
  EXPECT_TRUE(attacker.happened) << what;
  if (harm == Harm::kTwice) {
    cluster.settle();
    EXPECT_FALSE(cluster.failure().ok()) << what;
  }
  return !cluster.failure().ok();
}

TEST(Hostile, ChangedMessagesEndTheJobOrAreDroppedButNeverSpoilAResult) {
  for (int harm = 0; harm < static_cast<int>(Harm::kCount); ++harm) {
    int noticed = 0;
    int noticed_directly = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      noticed += attack<int32_t>(seed, static_cast<Harm>(harm)) ? 1 : 0;
      noticed_directly += attack<float>(seed, static_cast<Harm>(harm)) ? 1 : 0;
    }
    EXPECT_GE(noticed, 50) << "harm " << harm;
    EXPECT_GE(noticed_directly, 50) << "harm " << harm;
  }
}

TEST(Hostile, DamagedPayloadsOfEveryCodecAreSurvived) {
  for (const std::string_view codec : compress::codec_names()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      ClusterOptions options = jittery_cluster_of(3, 1, seed);
      options.expect_equal_results = false;  // damage that no format tells shows in one node's result
      Cluster cluster(options);
      BucketShape shape;
      shape.layers = {40'000, 10, 3000};
      shape.codec = std::string(codec);
      shape.settings.warm_start_steps = 0;
      cluster.add_bucket(1, shape);
      std::mt19937_64 random(seed);
      for (uint32_t r = 0; r < 3; ++r) {
        for (float& value : cluster.rank(r).gradients[1]->as<float>()) {
          value = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
        }
      }
      cluster.network().set_filter([&random](transport::SimMessage& message) {
        for (int i = 0; i < 3 && !message.payload.empty(); ++i) {
          message.payload[random() % std::min<size_t>(message.payload.size(), 1 + random() % 70'000)] =
              static_cast<std::byte>(random());
        }
        return 1;
      });
      cluster.submit_all(1);
      cluster.run_until([&] { return cluster.completed(1); }, kSecond);
      EXPECT_TRUE(cluster.completed(1));
    }
  }
}

TEST(Hostile, StrangersAreDroppedAndCounted) {
  Cluster cluster(jittery_cluster_of(3, 1, 1));
  BucketShape shape;
  shape.layers = {50'000};
  shape.dtype = compress::Dtype::kInt32;
  cluster.add_bucket(1, shape);
  auto stranger = cluster.network().create_node("stranger");
  cluster.submit_all(1);
  std::mt19937_64 random(5);
  uint64_t keyless = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> header(random() % 129);
    std::vector<std::byte> payload(random() % 1000);
    std::generate(header.begin(), header.end(), [&] { return static_cast<std::byte>(random()); });
    keyless += header.size() < 16 ? 1 : 0;
    cluster.network().inject("stranger", "node-1", header, payload);
    if (i % 10 == 0) {
      pass(cluster, 1000);
    }
  }
  ASSERT_TRUE(cluster.finish(1));
  cluster.settle();
  check_results(cluster, 1, "strangers");
  EXPECT_EQ(cluster.node(1).engine->counters().malformed, keyless);
  EXPECT_EQ(cluster.node(1).engine->counters().unknown_key, 300 - keyless);
}

TEST(Hostile, WhoKnowsTheKeyCanOnlyEndTheJob) {
  int ended = 0, unharmed = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Cluster cluster(jittery_cluster_of(3, 1, seed));
    BucketShape shape;
    shape.name = "gradients";
    shape.layers = {seed % 2 == 0 ? 100u : 40'000u};
    shape.dtype = compress::Dtype::kInt32;
    cluster.add_bucket(1, shape);
    std::mt19937_64 random(seed);
    engine::MessageHeader header{};
    std::memcpy(header.key.data(), cluster.key().data(), 16);
    header.magic = engine::kMessageMagic;
    header.kind = static_cast<uint8_t>(1 + random() % 4);
    const bool shards = seed % 4 == 1;
    header.operation = header.kind == 1   ? (shards ? layout::kOpReduceScatter : layout::kOpAllreduce)
                       : header.kind == 2 ? (shards ? layout::kOpAllgather : layout::kOpAllreduce)
                       : header.kind == 3 ? static_cast<uint8_t>(1 + random() % 5)
                                          : layout::kOpBroadcast;
    header.reduce_op = static_cast<uint8_t>(random() % 5);
    header.dtype = 4;
    header.sequence = 1 + random() % 3;
    header.scale_bits = 0x3ff0000000000000;
    header.elements = shape.layers[0];
    header.bucket = static_cast<uint32_t>(random() % 3);
    header.from_node = static_cast<uint32_t>(random() % 3);
    if (header.kind != 3) {
      header.hop = static_cast<uint32_t>(random() % 5);
      header.chunk = static_cast<uint32_t>(random() % 4);
      header.segment = static_cast<uint32_t>(random() % 3);
    }
    std::vector<std::byte> payload(header.kind == 3 ? 0 : random() % 9000);
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.checksum = engine::message_checksum(header);
    const auto bytes = std::as_bytes(std::span<const engine::MessageHeader, 1>(&header, 1));
    cluster.network().inject("node-0", "node-1", bytes, payload);
    if (seed % 3 != 0) {
      cluster.settle();
    }
    // What the message is about, where it is about the bucket's data.
    Request request;
    request.operation = header.kind <= 2 ? header.operation : layout::kOpAllreduce;
    cluster.submit_all(1, request);
    cluster.run_until([&] { return cluster.completed(1); }, kSecond);
    ended += cluster.failure().ok() ? 0 : 1;
    if (cluster.failure().ok() && cluster.completed(1)) {
      if (request.operation == layout::kOpAllreduce) {
        check_results(cluster, 1, "seed " + std::to_string(seed));
      }
      ++unharmed;
    }
  }
  EXPECT_GT(ended, 200);
  EXPECT_GT(unharmed, 0);
}

BucketShape direct_bucket(uint64_t elements) {
  BucketShape shape = bucket_of(elements, "none");
  shape.algorithm = engine::Algorithm::kDirect;
  return shape;
}

TEST(Hostile, ADirectMessageThatIsOfNoOperationToComeEndsTheJob) {
  constexpr uint32_t kNodes = 3;
  for (const uint64_t sequence : {1u, 2u, 1 + kNodes, 2 + kNodes}) {
    Cluster cluster(cluster_of(kNodes, 1));
    cluster.add_bucket(1, direct_bucket(300));
    transport::SimMessage share;
    cluster.network().set_filter([&share](transport::SimMessage& message) {
      if (message.from == "node-0" && message.to == "node-1" && share.header.empty()) {
        share = message;
      }
      return 1;
    });
    cluster.submit_all(1);
    ASSERT_TRUE(cluster.finish(1));
    cluster.settle();
    engine::MessageHeader header;
    std::memcpy(&header, share.header.data(), sizeof(header));
    ASSERT_EQ(header.kind, static_cast<uint8_t>(engine::MessageKind::kReduce));
    header.sequence = sequence;
    header.checksum = engine::message_checksum(header);
    cluster.network().inject("node-0", "node-1", engine::bytes_of(header), share.payload);
    cluster.settle();
    const bool to_come = sequence > 1 && sequence <= 1 + kNodes;
    EXPECT_EQ(cluster.failure().ok(), to_come) << sequence << ": " << cluster.failure().message();
    if (!to_come) {
      EXPECT_THAT(cluster.failure().message(),
                  HasSubstr("sent a reduce message of operation " + std::to_string(sequence)));
    }
  }
}

TEST(Hostile, ADamagedMessageIsBlamedOnWhomItMayBeFrom) {
  struct Case {
    const char* from;
    bool direct, whole_header;
    const char* sentence;
  };
  constexpr Case kCases[] = {
      {"node-3", true, true, "a damaged message came from node 3 (node-3): the payload is not as long"},
      {"node-3", true, false, "a damaged message came from one of the other 4 nodes: the header's checksum"},
      {"node-0", false, false, "came from node 0 (node-0) or node 2 (node-2): the header's checksum"}};
  for (const Case& damage : kCases) {
    Cluster cluster(cluster_of(5, 1));
    cluster.add_bucket(1, damage.direct ? direct_bucket(500) : bucket_of(500));
    cluster.network().set_filter([&damage](transport::SimMessage& message) {
      if (message.from == damage.from && message.to == "node-1" && !message.payload.empty()) {
        if (damage.whole_header) {
          message.payload.pop_back();
        } else {
          message.header.back() ^= std::byte{1};
        }
      }
      return 1;
    });
    cluster.submit_all(1);
    cluster.run_until([&cluster] { return !cluster.failure().ok(); }, kSecond);
    EXPECT_EQ(cluster.failure().code(), Code::kCorrupt);
    EXPECT_THAT(cluster.failure().message(), HasSubstr(damage.sentence));
  }
}

TEST(Hostile, AFloodOfUnknownBucketsIsBounded) {
  Cluster cluster(jittery_cluster_of(2, 1, 1));
  for (uint32_t bucket = 100; bucket < 1200; ++bucket) {
    engine::MessageHeader header{};
    std::memcpy(header.key.data(), cluster.key().data(), 16);
    header.magic = engine::kMessageMagic;
    header.kind = 3;
    header.operation = 1;
    header.sequence = 1;
    header.scale_bits = 0x3ff0000000000000;
    header.bucket = bucket;
    header.from_node = 1;
    header.checksum = engine::message_checksum(header);
    cluster.network().inject("node-1", "node-0",
                             std::as_bytes(std::span<const engine::MessageHeader, 1>(&header, 1)), {});
  }
  cluster.settle();
  EXPECT_THAT(cluster.failure().message(), HasSubstr("1124"));
}

}  // namespace
}  // namespace gradwire::sim
