// One operation, segment by segment: a processor and an outgoing wire that each do one thing at a time, and
// messages that take their latency. What the planner's formulas are held against, and not made from them.
// All nodes do the same at the same time, so what a node sends is what it receives a latency later.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <vector>

#include "daemon/planner/planner.h"

namespace gradwire::planner {

class RingModel {
 public:
  RingModel(const Workload& bucket, const NodeCosts& costs, const Choice& choice)
      : nodes_(bucket.nodes), costs_(costs), direct_(choice.algorithm == Algorithm::kDirect) {
    double room = 0;
    for (const Workload::Part& part : bucket.parts) {
      const bool exact = !part.codec || choice.codec.kind == CodecChoice::Kind::kBypass;
      const CodecCost& cost =
          exact ? costs.exact
                : costs.codecs[choice.codec.kind == CodecChoice::Kind::kOther ? choice.codec.other
                                                                              : *part.codec];
      room += static_cast<double>(part.elements) * cost.most_bytes_per_element;
      parts_.push_back({static_cast<double>(part.elements), cost});
    }
    segments_ = static_cast<int>(std::max(1.0, std::ceil(room / nodes_ / choice.segment_bytes)));
    granted_ = room / nodes_ / segments_ > 8192;
    for (Part& part : parts_) {
      part.elements /= nodes_ * segments_;  // of one segment
    }
    bytes_ = 96;
    for (const Part& part : parts_) {
      bytes_ += part.elements * part.cost.bytes_per_element;
    }
  }

  double run() {
    const double start = granted_ ? costs_.link.message_cpu_ns + costs_.link.latency_ns : 0;
    const int sends = direct_ ? static_cast<int>(nodes_) - 1 : 1;
    for (int segment = 0; segment < segments_; ++segment) {
      for (int send = 0; send < sends; ++send) {
        injections_.push(segment);
      }
    }
    now_ = start;
    // As the engine: two segments are begun where the link has room, then what has arrived gets its turn.
    while (!injections_.empty() || !arrivals_.empty()) {
      const double before = now_;
      for (int burst = 0; burst < 2 && !injections_.empty() && wire_ - now_ < 8 * wire_time(); ++burst) {
        now_ += code(&CodecCost::first) + message();
        send(0, injections_.front());
        injections_.pop();
      }
      const double polled = now_;
      while (!arrivals_.empty() && arrivals_.top().when <= polled) {
        const Arrival arrival = arrivals_.top();
        arrivals_.pop();
        direct_ ? take_direct(arrival) : take_ring(arrival);
      }
      if (now_ == before) {
        now_ = arrivals_.empty() ? wire_ : arrivals_.top().when;
      }
    }
    return now_;
  }

 private:
  struct Part {
    double elements = 0;
    CodecCost cost;
  };
  struct Arrival {
    double when = 0;
    int hop = 0, segment = 0;
    bool operator<(const Arrival& other) const { return when > other.when; }
  };

  double code(Line CodecCost::*line) const {
    double ns = 0;
    for (const Part& part : parts_) {
      ns += (part.cost.*line).at(part.elements);
    }
    return ns;
  }
  // Half when it is sent, half when it arrives.
  double message() const { return (costs_.link.message_cpu_ns + bytes_ * costs_.link.byte_cpu_ns) / 2; }
  double wire_time() const { return bytes_ * costs_.link.byte_wire_ns; }

  void send(int hop, int segment) {
    wire_ = std::max(wire_, now_) + wire_time();
    arrivals_.push({wire_ + costs_.link.latency_ns, hop, segment});
  }

  void take_ring(const Arrival& arrival) {
    const int last_reduce = static_cast<int>(nodes_) - 2;
    const bool reduces = arrival.hop <= last_reduce;
    now_ += message() + (reduces ? code(&CodecCost::relay) : 0);
    if (arrival.hop < 2 * static_cast<int>(nodes_) - 3) {
      now_ += message();
      send(arrival.hop + 1, arrival.segment);
    }
    now_ += !reduces || arrival.hop == last_reduce ? code(&CodecCost::decode) : 0;
  }

  void take_direct(const Arrival& arrival) {
    if (arrival.hop == 1) {
      now_ += message() + code(&CodecCost::decode);
      return;
    }
    const int others = static_cast<int>(nodes_) - 1;
    now_ += message() + code(&CodecCost::relay) - code(&CodecCost::first);
    if (++collected_[arrival.segment] == others) {
      now_ += code(&CodecCost::first) + code(&CodecCost::decode);
      for (int other = 0; other < others; ++other) {
        now_ += message();
        send(1, arrival.segment);
      }
    }
  }

  double nodes_;
  const NodeCosts& costs_;
  bool direct_;
  std::vector<Part> parts_;
  int segments_ = 1;
  bool granted_ = false;
  double bytes_ = 0;  // of a message
  double now_ = 0;    // the processor is free
  double wire_ = 0;   // the wire is free
  std::queue<int> injections_;
  std::priority_queue<Arrival> arrivals_;
  std::map<int, int> collected_;
};

}  // namespace gradwire::planner
