// The planner: from measured costs to how a bucket's allreduce is done.
//
// Pure: no clock, no network, no state; the same arguments give the same plan on any machine. One node (the
// job's coordinator) asks it, for all.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/planner/costs.h"

namespace gradwire::planner {

enum class Algorithm : uint8_t { kRing, kDirect };

// What compress::BucketShape::max_message_bytes is at least.
inline constexpr uint32_t kSmallestSegment = 70'000;

// Which codecs a bucket gets.
struct CodecChoice {
  enum class Kind : uint8_t {
    kPolicy,  // what the policy says, layer by layer
    kBypass,  // none: everything is exact
    kOther    // NodeCosts::codecs[other], in place of any codec that the policy names, none excepted
  };
  Kind kind = Kind::kPolicy;
  uint32_t other = 0;
  bool operator==(const CodecChoice&) const = default;
};

struct Choice {
  Algorithm algorithm = Algorithm::kRing;
  CodecChoice codec;
  uint32_t segment_bytes = 0;  // the most that a message carries
  bool operator==(const Choice&) const = default;
};

// A bucket: how many elements the policy gives to which codec.
struct Workload {
  struct Part {
    std::optional<uint32_t> codec;  // into NodeCosts::codecs; none: exact
    uint64_t elements = 0;
  };
  uint32_t nodes = 1;
  std::vector<Part> parts;
};

struct Estimate {
  double total_ns = 0;
  double cpu_ns = 0, wire_ns = 0;  // of the whole operation on one node; they overlap
  double bytes = 0;                // that a node sends
};

// P nodes, S segments a chunk; c and w are one segment's time on the processor (coding, sending, receiving)
// and on the wire, l the latency. A node codes N elements and sends 2(P-1)/P of their bytes in both; each
// half (summing, handing out) takes
//   ring    (P-1) * max(S * max(c, w), c + w + l)          a hop waits for the one before
//   direct  S (P-1) max(c', w) + l + one segment's coding  c' is what a share costs to encode and send
// The halves overlap where there is one hop, or more segments than the link's window; a grant costs l more
// where a message is above 8 KiB. Held against a model that plays an operation segment by segment: within
// 16%.
Estimate estimate(const Workload& bucket, const NodeCosts& costs, const Choice& choice);

// What may be chosen, what is preferred first. Each list has at least one entry.
struct Allowed {
  std::vector<Algorithm> algorithms = {Algorithm::kRing};
  std::vector<CodecChoice> codecs = {CodecChoice{}};
  std::vector<uint32_t> segments;
};

struct Decision {
  Choice choice;
  Estimate expected;
  // What exact allreduces over the ring would take: what `saved` is counted from.
  double exact_ns = 0;
};

// The fastest; of those within 1% of it the one that comes first.
Decision choose(const Workload& bucket, const NodeCosts& costs, const Allowed& allowed);

// The sizes of messages that are worth a try: the largest, and halves of it that a segment may have.
std::vector<uint32_t> segment_sizes(uint32_t largest);

}  // namespace gradwire::planner
