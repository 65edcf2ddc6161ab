#include "daemon/planner/costs.h"

#include <algorithm>
#include <cmath>

#include "daemon/planner/planner.h"

namespace gradwire::planner {
namespace {

constexpr double kSecond = 1e9;

void take_slower(Line& line, const Line& other) {
  line.fixed_ns = std::max(line.fixed_ns, other.fixed_ns);
  line.unit_ns = std::max(line.unit_ns, other.unit_ns);
}

void take_slower(CodecCost& cost, const CodecCost& other) {
  take_slower(cost.first, other.first);
  take_slower(cost.relay, other.relay);
  take_slower(cost.decode, other.decode);
  cost.bytes_per_element = std::max(cost.bytes_per_element, other.bytes_per_element);
  cost.most_bytes_per_element = std::max(cost.most_bytes_per_element, other.most_bytes_per_element);
}

Status check(const std::string& what, double value, double most) {
  if (std::isfinite(value) && value >= 0 && value <= most) {
    return ok_status();
  }
  return {Code::kCorrupt,
          what + " is " + std::to_string(value) + ", not between 0 and " + std::to_string(most)};
}

Status check(const std::string& name, const CodecCost& cost) {
  for (const Line* const line : {&cost.first, &cost.relay, &cost.decode}) {
    GRADWIRE_RETURN_IF_ERROR(check(name + ", a segment's nanoseconds", line->fixed_ns, kSecond));
    GRADWIRE_RETURN_IF_ERROR(check(name + ", an element's nanoseconds", line->unit_ns, kSecond));
  }
  GRADWIRE_RETURN_IF_ERROR(check(name + ", an element's bytes", cost.bytes_per_element, 64));
  return check(name + ", an element's most bytes", cost.most_bytes_per_element, 64);
}

}  // namespace

Line line_through(double small, double small_ns, double large, double large_ns) {
  const double unit = (large_ns - small_ns) / (large - small);
  const double fixed = small_ns - unit * small;
  if (unit < 0) {
    return {(small_ns + large_ns) / 2, 0};
  }
  return fixed < 0 ? Line{0, large_ns / large} : Line{fixed, unit};
}

NodeCosts slowest(std::span<const NodeCosts> nodes) {
  NodeCosts all = nodes.front();
  for (const NodeCosts& node : nodes.subspan(1)) {
    LinkCost& link = all.link;
    link.latency_ns = std::max(link.latency_ns, node.link.latency_ns);
    link.message_cpu_ns = std::max(link.message_cpu_ns, node.link.message_cpu_ns);
    link.byte_cpu_ns = std::max(link.byte_cpu_ns, node.link.byte_cpu_ns);
    link.byte_wire_ns = std::max(link.byte_wire_ns, node.link.byte_wire_ns);
    take_slower(all.exact, node.exact);
    for (size_t i = 0; i < all.codecs.size(); ++i) {
      take_slower(all.codecs[i], node.codecs[i]);
    }
  }
  return all;
}

Status check_costs(const NodeCosts& costs) {
  GRADWIRE_RETURN_IF_ERROR(check("latency", costs.link.latency_ns, 3600 * kSecond));
  GRADWIRE_RETURN_IF_ERROR(check("a message's processor time", costs.link.message_cpu_ns, kSecond));
  GRADWIRE_RETURN_IF_ERROR(check("a byte's processor time", costs.link.byte_cpu_ns, kSecond));
  GRADWIRE_RETURN_IF_ERROR(check("a byte's time on the wire", costs.link.byte_wire_ns, kSecond));
  GRADWIRE_RETURN_IF_ERROR(check("exact", costs.exact));
  for (size_t i = 0; i < costs.codecs.size(); ++i) {
    GRADWIRE_RETURN_IF_ERROR(check("codec " + std::to_string(i), costs.codecs[i]));
  }
  return ok_status();
}

LinkCost fit_link(const ProbeTimes& probe, uint32_t nodes, uint32_t segment_bytes, const CodecCost& exact) {
  const double hops = 2.0 * (nodes - 1);
  const bool cpu_known = probe.empty_cpu_ns > 0 || probe.full_cpu_ns > 0;
  NodeCosts costs;
  costs.exact = exact;
  LinkCost& link = costs.link;
  // An empty bucket's chunks are one message each, and nothing of it overlaps.
  const double way = probe.empty_ns / hops;
  link.message_cpu_ns = std::min(way, cpu_known ? probe.empty_cpu_ns / hops : way / 2);
  link.latency_ns = way - link.message_cpu_ns;

  const Workload bucket{nodes, {{std::nullopt, probe.elements}}};
  const Choice choice{Algorithm::kRing, {}, segment_bytes};
  const Estimate free = estimate(bucket, costs, choice);  // of bytes that cost nothing
  const double full_cpu = cpu_known ? std::min(probe.full_cpu_ns, probe.full_ns) : probe.full_ns / 2;
  link.byte_cpu_ns = std::max(0.0, full_cpu - free.cpu_ns) / free.bytes;
  // The headers of the empty ones cost, too.
  const double header = estimate({nodes, {}}, costs, choice).bytes / hops;
  link.message_cpu_ns = std::max(0.0, link.message_cpu_ns - header * link.byte_cpu_ns);
  // Where the processor is the limit, how fast the wire is does not show, and does not matter.
  const double slowest_byte = probe.full_ns / free.bytes;
  for (int round = 0; round < 3; ++round) {
    double low = 0;
    double high = slowest_byte;
    for (int i = 0; i < 60; ++i) {
      link.byte_wire_ns = (low + high) / 2;
      (estimate(bucket, costs, choice).total_ns < probe.full_ns ? low : high) = link.byte_wire_ns;
    }
    link.latency_ns =
        std::max(0.0, way - link.message_cpu_ns - header * (link.byte_wire_ns + link.byte_cpu_ns));
  }
  return link;
}

}  // namespace gradwire::planner
