#include "transport/sim/sim_core.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace gradwire::transport::sim_internal {
namespace {

void mix(uint64_t& hash, uint64_t value) {
  hash = (hash ^ value) * 0x100000001b3u;
  hash ^= hash >> 29;
}

uint64_t transmission_ns(uint64_t bytes, uint64_t bytes_per_second) {
  return bytes_per_second == 0 ? 0 : (bytes * 1'000'000'000 + bytes_per_second - 1) / bytes_per_second;
}

}  // namespace

Core::Core(const SimOptions& simulation) : options(simulation), random_(simulation.seed) {}

Node* Core::add_node(std::string_view name) {
  if (const auto known = by_name_.find(std::string(name)); known != by_name_.end()) {
    kill(known->second);
  }
  auto node = std::make_unique<Node>();
  node->index = static_cast<uint32_t>(nodes_.size());
  node->name = name;
  by_name_[node->name] = node.get();
  nodes_.push_back(std::move(node));
  return nodes_.back().get();
}

Node* Core::node(std::string_view name) const {
  const auto known = by_name_.find(std::string(name));
  if (known == by_name_.end()) {
    std::fprintf(stderr, "SimNetwork: the test names a node '%.*s' that it never created\n",
                 static_cast<int>(name.size()), name.data());
    std::abort();
  }
  return known->second;
}

Link* Core::link(Node* from, Node* to) {
  auto& slot = links_[uint64_t{from->index} << 32 | to->index];
  if (slot == nullptr) {
    slot = std::make_unique<Link>();
    slot->from = from;
    slot->to = to;
    slot->latency_ns = options.latency_ns;
    slot->bytes_per_second = options.bytes_per_second;
  }
  return slot.get();
}

void Core::schedule(Event::Kind kind, uint64_t time, uint64_t token, void* subject) {
  events_.push({kind, time, order_++, token, subject});
}

bool Core::stale(const Event& event) const {
  switch (event.kind) {
    case Event::Kind::kDepart:
      return static_cast<Link*>(event.subject)->transmit_token != event.token;
    case Event::Kind::kArrive:
      return static_cast<Link*>(event.subject)->arrival_token != event.token;
    case Event::Kind::kSent:
      return static_cast<Send*>(event.subject)->generation != event.token;
    case Event::Kind::kError:
      return find(static_cast<Node*>(event.subject), static_cast<PeerId>(event.token)) == nullptr;
  }
  return true;
}

std::optional<uint64_t> Core::next_event() {
  while (!events_.empty() && stale(events_.top())) {
    events_.pop();
  }
  if (events_.empty()) {
    return std::nullopt;
  }
  return events_.top().time;
}

bool Core::advance(uint64_t until) {
  bool any = false;
  for (auto next = next_event(); next.has_value() && *next <= until; next = next_event()) {
    now_ = std::max(now_, *next);
    const Event event = events_.top();
    events_.pop();
    handle(event);
    any = true;
  }
  now_ = std::max(now_, until);
  return any;
}

void Core::handle(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kDepart:
      return depart(static_cast<Link*>(event.subject));
    case Event::Kind::kArrive:
      return arrive(static_cast<Link*>(event.subject));
    case Event::Kind::kSent: {
      Send* send = static_cast<Send*>(event.subject);
      send->peer->link->from->inbox.push({.kind = InboxEntry::Kind::kSent, .sent = {send, send->generation}});
      return;
    }
    case Event::Kind::kError: {
      Node* node = static_cast<Node*>(event.subject);
      node->inbox.push({.kind = InboxEntry::Kind::kError, .peer = static_cast<PeerId>(event.token)});
      return;
    }
  }
}

void Core::start_transmission(Link* link) {
  while (!link->waiting.empty() && link->waiting.front().stale()) {
    link->waiting.pop();
  }
  ++link->transmit_token;
  if (link->waiting.empty() || link->cut || link->from->dead || link->to->dead) {
    return;
  }
  const Send* send = link->waiting.front().send;
  const size_t bytes = send->captured != nullptr ? send->captured->payload.size() : send->payload.size();
  schedule(Event::Kind::kDepart, now_ + transmission_ns(send->header_size + bytes, link->bytes_per_second),
           link->transmit_token, link);
}

void Core::depart(Link* link) {
  const SendRef ref = link->waiting.pop();
  if (!ref.stale()) {
    Send* send = ref.send;
    Message* message = std::exchange(send->captured, nullptr);
    if (message == nullptr) {
      message = make_message({send->header.data(), send->header_size}, send->payload);
    }
    auto& counters = link->from->counters;
    ++counters.messages_sent;
    counters.bytes_sent += message->header.size() + message->payload.size();
    emit(link, message);
    if (send->done == nullptr) {
      unlink(send);
      release(send);
    } else if (random() % 256 < options.late_completions) {
      schedule(Event::Kind::kSent, now_ + 1 + random_.up_to(2 * link->latency_ns), send->generation, send);
    } else {
      link->from->inbox.push({.kind = InboxEntry::Kind::kSent, .sent = ref});
    }
  }
  start_transmission(link);
}

Message* Core::make_message(std::span<const std::byte> header, std::span<const std::byte> payload) {
  Message* message = messages_.acquire(header.size(), payload.size(), random());
  if (!header.empty()) {
    std::memcpy(message->header.data(), header.data(), header.size());
  }
  if (!payload.empty()) {
    std::memcpy(message->payload.data(), payload.data(), payload.size());
  }
  return message;
}

void Core::emit(Link* link, Message* message) {
  if (!filter) {
    return put_on_wire(link, message);
  }
  SimMessage view{link->from->name,
                  link->to->name,
                  {message->header.begin(), message->header.end()},
                  {message->payload.begin(), message->payload.end()}};
  messages_.release(message);
  for (int copies = filter(view); copies > 0; --copies) {
    put_on_wire(link, make_message(view.header, view.payload));
  }
}

void Core::put_on_wire(Link* link, Message* message) {
  const uint64_t arrival = now_ + link->latency_ns + random_.up_to(options.jitter_ns);
  link->last_arrival = std::max(link->last_arrival, arrival);
  message->arrival = link->last_arrival;
  link->flying.push(message);
  if (link->flying.size() == 1) {
    start_arrival(link);
  }
}

void Core::start_arrival(Link* link) {
  ++link->arrival_token;
  if (!link->flying.empty() && !link->cut) {
    schedule(Event::Kind::kArrive, std::max(now_, link->flying.front()->arrival), link->arrival_token, link);
  }
}

void Core::arrive(Link* link) {
  Message* message = link->flying.pop();
  if (link->to->dead || message->header.size() > kMaxHeaderBytes) {
    messages_.release(message);
  } else {
    ++deliveries;
    mix(fingerprint, now_);
    mix(fingerprint, uint64_t{link->from->index} << 32 | link->to->index);
    mix(fingerprint, uint64_t{message->header.size()} << 32 | message->payload.size());
    for (const std::byte byte : message->header) {
      mix(fingerprint, static_cast<uint64_t>(byte));
    }
    link->to->inbox.push({.kind = InboxEntry::Kind::kMessage, .message = message});
  }
  start_arrival(link);
}

}  // namespace gradwire::transport::sim_internal
