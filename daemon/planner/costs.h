// What the planner knows of codecs and of the network: measured on every node, put together for a job.
//
// Plain values and pure functions: the same figures give the same costs on any machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/base/result.h"

namespace gradwire::planner {

// What something costs as A + B * size.
struct Line {
  double fixed_ns = 0;  // A
  double unit_ns = 0;   // B: a byte's or an element's
  double at(double size) const { return fixed_ns + unit_ns * size; }
};

// Through what a small and a large one took; where that needs a negative A or B, it is zero.
Line line_through(double small, double small_ns, double large, double large_ns);

// A codec on one thread; sizes are elements, A is a segment's.
struct CodecCost {
  Line first;   // a hop to which nothing has arrived
  Line relay;   // a hop that adds its share to what has arrived
  Line decode;  // a finished segment into the result
  double bytes_per_element = 4;
  double most_bytes_per_element = 4;  // what a segment must have room for
};

// A node's link to its neighbours. The engine's thread sends and receives itself, so that a message costs
// processor time as well as time on the wire.
struct LinkCost {
  double latency_ns = 0;      // from a message's end on one node to its beginning on the next
  double message_cpu_ns = 0;  // a message's, sent and received
  double byte_cpu_ns = 0;     // a byte's, sent and received
  double byte_wire_ns = 0;    // a byte's time on the wire
};

// What a node found out. `codecs` are the codecs that may be chosen, in an order which all nodes share.
struct NodeCosts {
  LinkCost link;
  CodecCost exact;
  std::vector<CodecCost> codecs;
};

// The slowest node counts, figure by figure: a ring waits for it. All must have equally many codecs, at least
// one node.
NodeCosts slowest(std::span<const NodeCosts> nodes);

// kCorrupt names a figure that cannot be true: negative, not finite, more than a second a byte or element or
// an hour in all.
Status check_costs(const NodeCosts& costs);

// What exact allreduces of nothing and of `elements` fp32 took on a ring: wall clock, and processor time of
// the engine's thread (0: not known, then half of the time counts as the processor's).
struct ProbeTimes {
  uint64_t elements = 0;
  double empty_ns = 0, empty_cpu_ns = 0;
  double full_ns = 0, full_cpu_ns = 0;
};

// The link for which estimate() (planner.h) gives the probe's times back.
LinkCost fit_link(const ProbeTimes& probe, uint32_t nodes, uint32_t segment_bytes, const CodecCost& exact);

}  // namespace gradwire::planner
