// What the transports call: connect, send, disconnect, poll.
#include <charconv>
#include <utility>

#include "transport/sim/sim_core.h"

namespace gradwire::transport::sim_internal {
namespace {

constexpr std::string_view kScheme = "sim:";

Status bad_address(std::string_view reason) {
  return {Code::kInvalidArgument, "cannot connect: the address is not one of this network's nodes (" +
                                      std::string(reason) + "); take it from the other node's address()"};
}

}  // namespace

std::string Core::address(const Node& node) {
  return std::string(kScheme) + std::to_string(node.index) + ":" + node.name;
}

Peer* Core::find(Node* node, PeerId id) {
  return id == 0 || id > node->peers.size() ? nullptr : node->peers[id - 1].get();
}

Result<PeerId> Core::connect(Node* from, std::string_view address) {
  if (!address.starts_with(kScheme)) {
    return bad_address("it does not begin with 'sim:'");
  }
  const std::string_view rest = address.substr(kScheme.size());
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
  if (error != std::errc() || index >= nodes_.size()) {
    return bad_address("no node has that number");
  }
  Node* to = nodes_[index].get();
  if (rest.substr(static_cast<size_t>(end - rest.data())) != ":" + to->name) {
    return bad_address("number and name disagree");
  }
  if (to->dead) {
    return Status(Code::kUnavailable, "cannot connect to '" + to->name + "': the node is gone");
  }
  auto peer = std::make_unique<Peer>();
  peer->id = static_cast<PeerId>(from->peers.size() + 1);
  peer->link = link(from, to);
  to->incoming.emplace_back(from, peer->id);
  from->peers.push_back(std::move(peer));
  return from->peers.back()->id;
}

void Core::send(Node* node, PeerId id, std::span<const std::byte> header, std::span<const std::byte> payload,
                SendCompletion* done) {
  Peer* peer = find(node, id);
  if (peer == nullptr || peer->closing) {
    return done->on_sent(
        {Code::kUnavailable, "cannot send: peer " + std::to_string(id) + " is not connected"});
  }
  if (!peer->error.ok()) {
    return done->on_sent(peer->error);
  }
  if (header.size() > kMaxHeaderBytes || payload.size() > options.max_payload) {
    return done->on_sent({Code::kInvalidArgument, "cannot send " + std::to_string(header.size()) + " + " +
                                                      std::to_string(payload.size()) +
                                                      " bytes: header and payload are limited to " +
                                                      std::to_string(kMaxHeaderBytes) + " and " +
                                                      std::to_string(options.max_payload)});
  }
  if (free_sends_.empty()) {
    free_sends_.push_back(&sends_.emplace_back());
  }
  Send* send = free_sends_.back();
  free_sends_.pop_back();
  send->peer = peer;
  send->done = done;
  send->previous = peer->last;
  send->next = nullptr;
  (peer->last != nullptr ? peer->last->next : peer->first) = send;
  peer->last = send;

  Link* link = peer->link;
  const bool up = !link->cut && !link->from->dead && !link->to->dead;
  const bool at_once = random() % 256 < options.inline_completions && up;
  send->header_size = static_cast<uint32_t>(header.size());
  if (at_once) {
    send->captured = make_message(header, payload);
    send->done = nullptr;
  } else {
    if (!header.empty()) {
      std::memcpy(send->header.data(), header.data(), header.size());
    }
    send->payload = payload;
  }
  link->waiting.push({send, send->generation});
  if (link->waiting.size() == 1) {
    start_transmission(link);
  }
  if (link->to->dead && !link->cut) {
    schedule_error(node, peer, options.error_delay_ns);
  }
  if (at_once) {
    done->on_sent(ok_status());  // last, because the sender may send again from here
  }
}

void Core::unlink(Send* send) {
  Peer* peer = send->peer;
  (send->previous != nullptr ? send->previous->next : peer->first) = send->next;
  (send->next != nullptr ? send->next->previous : peer->last) = send->previous;
}

void Core::release(Send* send) {
  if (send->captured != nullptr) {
    messages_.release(std::exchange(send->captured, nullptr));
  }
  ++send->generation;
  free_sends_.push_back(send);
}

// Looks the peer up again each time: a completion may send, disconnect or connect.
void Core::fail_sends(Node* node, PeerId id, const Status& status) {
  for (Peer* peer = find(node, id); peer != nullptr && peer->first != nullptr; peer = find(node, id)) {
    Send* send = peer->first;
    Link* link = peer->link;
    SendCompletion* done = send->done;
    const bool was_first = !link->waiting.empty() && link->waiting.front().send == send;
    unlink(send);
    release(send);
    if (was_first) {
      start_transmission(link);
    }
    if (done != nullptr) {
      done->on_sent(status);
    }
  }
}

void Core::fail_peer(Node* node, PeerId id) {
  Peer* peer = find(node, id);
  if (peer == nullptr || peer->closing || !peer->error.ok()) {
    return;
  }
  const Status status(Code::kUnavailable, "the connection to '" + peer->link->to->name +
                                              "' is lost; disconnect and connect again");
  peer->error = status;
  fail_sends(node, id, status);
  if (find(node, id) != nullptr) {
    node->receiver->on_peer_error(id, status);
  }
}

void Core::disconnect(Node* node, PeerId id) {
  Peer* peer = find(node, id);
  if (peer == nullptr) {
    return;
  }
  peer->closing = true;
  Node* to = peer->link->to;
  fail_sends(node, id, Status(Code::kAborted, "the connection to '" + to->name + "' was closed"));
  if (find(node, id) != nullptr) {
    node->peers[id - 1].reset();
    std::erase(to->incoming, std::pair<Node*, PeerId>(node, id));
  }
}

size_t Core::poll(Node* node) {
  size_t events = 0;
  while (!node->dead && !node->inbox.empty()) {
    const InboxEntry entry = node->inbox.pop();
    switch (entry.kind) {
      case InboxEntry::Kind::kMessage: {
        Message* message = entry.message;
        ++node->counters.messages_received;
        node->counters.bytes_received += message->header.size() + message->payload.size();
        node->receiver->on_message(message->header, message->payload);
        messages_.release(message);
        break;
      }
      case InboxEntry::Kind::kSent:
        if (entry.sent.stale()) {
          continue;
        }
        {
          SendCompletion* done = entry.sent.send->done;
          unlink(entry.sent.send);
          release(entry.sent.send);
          done->on_sent(ok_status());
        }
        break;
      case InboxEntry::Kind::kError:
        fail_peer(node, entry.peer);
        break;
    }
    ++events;
  }
  return events;
}

}  // namespace gradwire::transport::sim_internal
