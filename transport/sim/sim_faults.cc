// Deaths, cuts and resets of the simulated network.
#include "transport/sim/sim_core.h"

namespace gradwire::transport::sim_internal {

void Core::schedule_error(Node* node, Peer* peer, uint64_t delay_ns) {
  if (!peer->error_scheduled) {
    peer->error_scheduled = true;
    schedule(Event::Kind::kError, now_ + delay_ns, peer->id, node);
  }
}

void Core::kill(Node* node) {
  if (node->dead) {
    return;
  }
  node->dead = true;
  while (!node->inbox.empty()) {
    if (const InboxEntry entry = node->inbox.pop(); entry.kind == InboxEntry::Kind::kMessage) {
      messages_.release(entry.message);
    }
  }
  for (const auto& peer : node->peers) {
    if (peer != nullptr) {
      start_transmission(peer->link);  // finds the sender dead and voids what was scheduled
    }
  }
  for (const auto& [from, id] : node->incoming) {
    Peer* peer = find(from, id);
    start_transmission(peer->link);
    if (peer->first != nullptr && !peer->link->cut) {
      schedule_error(from, peer, options.error_delay_ns);
    }
  }
}

void Core::set_cut(Node* a, Node* b, bool cut) {
  for (Link* one : {link(a, b), link(b, a)}) {
    if (one->cut == cut) {
      continue;
    }
    one->cut = cut;
    if (!cut && !one->flying.empty()) {
      // What was under way is sent again after the break.
      one->flying.front()->arrival = std::max(one->flying.front()->arrival, now_ + one->latency_ns);
      one->last_arrival = std::max(one->last_arrival, one->flying.front()->arrival);
    }
    start_transmission(one);
    start_arrival(one);
    if (!cut && one->to->dead) {
      for (const auto& [from, id] : one->to->incoming) {
        if (Peer* peer = find(from, id); from == one->from && peer->first != nullptr) {
          schedule_error(from, peer, options.error_delay_ns);
        }
      }
    }
  }
}

void Core::reset(Node* a, Node* b) {
  for (Link* one : {link(a, b), link(b, a)}) {
    while (!one->flying.empty()) {
      messages_.release(one->flying.pop());
    }
    start_arrival(one);
    for (const auto& [from, id] : one->to->incoming) {
      if (from == one->from) {
        schedule_error(from, find(from, id), 0);
      }
    }
  }
}

}  // namespace gradwire::transport::sim_internal
