#include "daemon/planner/planner.h"

#include <algorithm>
#include <cmath>

namespace gradwire::planner {
namespace {

constexpr double kHeaderBytes = 96;  // engine::MessageHeader
constexpr double kUngranted = 8192;  // engine::kSmallMessageBytes
constexpr double kWindow = 8;        // messages that a link takes at a time
constexpr double kNearlyAsFast = 1.01;

const CodecCost& cost_of(const Workload::Part& part, const NodeCosts& costs, const CodecChoice& choice) {
  if (!part.codec || choice.kind == CodecChoice::Kind::kBypass) {
    return costs.exact;
  }
  return costs.codecs[choice.kind == CodecChoice::Kind::kOther ? choice.other : *part.codec];
}

// One segment's times. A message's processor time is halved: once it is sent, once it arrives.
struct Segment {
  double first = 0, relay = 0, decode = 0;
  double half = 0, wire = 0, latency = 0;
};

struct Halves {
  double apart = 0;  // the halves of the operation one after the other
  double alone = 0;  // one segment, if there were no others
  double tail = 0;   // behind the last segment
};

Halves ring(const Segment& of, double hops, double segments) {
  Halves out;
  const auto half = [&](double cpu, double on_the_way) {
    const double step = std::max(cpu, of.wire);
    const double way = on_the_way + of.wire + of.latency;
    out.apart += hops * std::max(segments * step, way);
    out.alone += hops * way;
    out.tail = std::max(0.0, std::min((segments - 1) * step, way - step));
  };
  const double summing = of.relay + of.first / hops + 2 * of.half;
  half(summing, summing);
  // A finished segment is sent on before it is decoded.
  half(of.decode * (1 + 1 / hops) + 2 * of.half, 2 * of.half);
  out.tail += of.decode;
  return out;
}

// Shares go out to their owners, who collect, encode the sum and send it to everybody.
Halves direct(const Segment& of, double hops, double segments) {
  const double share = of.first + of.half;
  const double collect = of.relay - of.first + of.half;
  const double own = of.first + of.decode;
  const auto half = [&of, hops](double count, double out, double in, double end) {
    const double last = count * hops * std::max(out, of.wire) + std::min(out, of.wire) + of.latency + in;
    return std::max(count * hops * (out + in), last) + end;
  };
  Halves out;
  out.apart =
      half(segments, share, collect, segments * own) + half(segments, of.half, of.half + of.decode, 0);
  out.alone = half(1, share, collect, own) + half(1, of.half, of.half + of.decode, 0);
  return out;
}

}  // namespace

Estimate estimate(const Workload& bucket, const NodeCosts& costs, const Choice& choice) {
  const double nodes = bucket.nodes;
  double room = 0;  // bytes that the segments of a chunk must have room for
  for (const Workload::Part& part : bucket.parts) {
    room += static_cast<double>(part.elements) / nodes *
            cost_of(part, costs, choice.codec).most_bytes_per_element;
  }
  const double segments = std::max(1.0, std::ceil(room / choice.segment_bytes));
  double bytes = kHeaderBytes;  // of a message
  Segment of;
  for (const Workload::Part& part : bucket.parts) {
    const CodecCost& cost = cost_of(part, costs, choice.codec);
    const double elements = static_cast<double>(part.elements) / nodes / segments;
    bytes += elements * cost.bytes_per_element;
    of.first += cost.first.at(elements);
    of.relay += cost.relay.at(elements);
    of.decode += cost.decode.at(elements);
  }
  if (bucket.nodes == 1) {
    const double coding = segments * (of.first + of.decode);
    return {coding, coding, 0, 0};
  }
  const double hops = nodes - 1;
  const LinkCost& link = costs.link;
  of.half = (link.message_cpu_ns + bytes * link.byte_cpu_ns) / 2;
  of.wire = bytes * link.byte_wire_ns;
  of.latency = link.latency_ns;
  Estimate out;
  out.cpu_ns = segments * (of.first + hops * of.relay + nodes * of.decode + 4 * hops * of.half);
  out.wire_ns = 2 * hops * segments * of.wire;
  out.bytes = 2 * hops * segments * bytes;
  // Of two nodes each sends the other one the same, in the same order.
  const bool around = choice.algorithm == Algorithm::kRing || bucket.nodes == 2;
  const Halves halves = around ? ring(of, hops, segments) : direct(of, hops, segments);
  // A segment's second half goes beside another's first where there is but one hop, and where the link's
  // window is full, which keeps later segments back until earlier ones are through.
  const double together = std::min(halves.apart, std::max({out.cpu_ns, out.wire_ns, halves.alone}));
  const double kept_back = of.first + of.half < of.wire ? std::min(1.0, kWindow / segments) : 1.0;
  const double sequential = std::max(1 - 1 / hops, 1 / segments) * kept_back;
  out.total_ns = together + (halves.apart - together) * sequential + halves.tail;
  if (room / segments > kUngranted) {
    out.total_ns += link.message_cpu_ns + link.latency_ns;
  }
  return out;
}

Decision choose(const Workload& bucket, const NodeCosts& costs, const Allowed& allowed) {
  std::vector<std::pair<Choice, Estimate>> tried;
  for (const CodecChoice& codec : allowed.codecs) {
    for (const Algorithm algorithm : allowed.algorithms) {
      for (const uint32_t segment : allowed.segments) {
        const Choice choice{algorithm, codec, segment};
        tried.emplace_back(choice, estimate(bucket, costs, choice));
      }
    }
  }
  double fastest = tried.front().second.total_ns;
  for (const auto& [choice, expected] : tried) {
    fastest = std::min(fastest, expected.total_ns);
  }
  const auto best = std::find_if(tried.begin(), tried.end(), [fastest](const auto& entry) {
    return entry.second.total_ns <= fastest * kNearlyAsFast;
  });
  const Choice exact{Algorithm::kRing, {CodecChoice::Kind::kBypass, 0}, allowed.segments.front()};
  return {best->first, best->second, estimate(bucket, costs, exact).total_ns};
}

std::vector<uint32_t> segment_sizes(uint32_t largest) {
  std::vector<uint32_t> sizes{largest};
  while (sizes.back() / 2 >= kSmallestSegment && sizes.size() < 6) {
    sizes.push_back(sizes.back() / 2);
  }
  return sizes;
}

}  // namespace gradwire::planner
