// The insides of SimNetwork: nodes, links, events. Included by transport/sim only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transport/sim/sim_network.h"
#include "transport/sim/sim_pool.h"
#include "transport/transport.h"

namespace gradwire::transport::sim_internal {

struct Link;
struct Peer;

// A send from the call to its end. Pooled; `generation` changes at release, so that events and queue entries
// that name a finished send are recognised as stale.
struct Send {
  uint64_t generation = 0;
  Send* previous = nullptr;  // in the peer's list
  Send* next = nullptr;
  Peer* peer = nullptr;
  SendCompletion* done = nullptr;  // nullptr once told
  std::span<const std::byte> payload;
  Message* captured = nullptr;  // the bytes, if they were read inside send()
  uint32_t header_size = 0;
  std::array<std::byte, kMaxHeaderBytes> header;
};

struct SendRef {
  Send* send = nullptr;
  uint64_t generation = 0;
  bool stale() const { return send->generation != generation; }
};

struct Peer {
  PeerId id = 0;
  Link* link = nullptr;
  Send* first = nullptr;  // in flight, oldest first
  Send* last = nullptr;
  bool error_scheduled = false;
  bool closing = false;
  Status error;
};

struct InboxEntry {
  enum class Kind : uint8_t { kMessage, kSent, kError } kind = Kind::kMessage;
  Message* message = nullptr;
  SendRef sent{};
  PeerId peer = 0;
};

struct Node {
  uint32_t index = 0;
  std::string name;
  bool dead = false;
  Receiver* receiver = nullptr;
  std::vector<std::unique_ptr<Peer>> peers;        // by PeerId - 1; null after disconnect
  std::vector<std::pair<Node*, PeerId>> incoming;  // who connected to this node
  Fifo<InboxEntry> inbox;
  TransportCounters counters;
};

struct Link {
  Node* from = nullptr;
  Node* to = nullptr;
  uint64_t latency_ns = 0;
  uint64_t bytes_per_second = 0;
  bool cut = false;
  uint64_t last_arrival = 0;
  uint64_t transmit_token = 0;  // events with another token are stale
  uint64_t arrival_token = 0;
  Fifo<SendRef> waiting;  // not yet departed
  Fifo<Message*> flying;  // departed, not yet arrived
};

struct Event {
  enum class Kind : uint8_t { kDepart, kArrive, kSent, kError } kind;
  uint64_t time;
  uint64_t order;  // breaks ties in the order of creation
  uint64_t token;  // of the link, or the send's generation, or the PeerId
  void* subject;   // Link, Send or Node
  bool operator<(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

class Core {
 public:
  explicit Core(const SimOptions& options);

  // Nodes and time.
  Node* add_node(std::string_view name);
  Node* node(std::string_view name) const;  // the living or latest one of that name; ends the process if none
  uint64_t now() const { return now_; }
  std::optional<uint64_t> next_event();
  bool advance(uint64_t until);

  // The transports' calls.
  Result<PeerId> connect(Node* from, std::string_view address);
  void disconnect(Node* node, PeerId id);
  void send(Node* node, PeerId id, std::span<const std::byte> header, std::span<const std::byte> payload,
            SendCompletion* done);
  size_t poll(Node* node);
  static std::string address(const Node& node);

  // Faults (sim_faults.cc).
  void kill(Node* node);
  void set_cut(Node* a, Node* b, bool cut);
  void reset(Node* a, Node* b);
  Link* link(Node* from, Node* to);
  void put_on_wire(Link* link, Message* message);
  Message* make_message(std::span<const std::byte> header, std::span<const std::byte> payload);

  const SimOptions options;
  MessageFilter filter;
  uint64_t fingerprint = 0xcbf29ce484222325u;
  uint64_t deliveries = 0;

 private:
  void schedule(Event::Kind kind, uint64_t time, uint64_t token, void* subject);
  bool stale(const Event& event) const;
  void handle(const Event& event);
  void depart(Link* link);
  void arrive(Link* link);
  void start_transmission(Link* link);
  void start_arrival(Link* link);
  void schedule_error(Node* node, Peer* peer, uint64_t delay_ns);
  void emit(Link* link, Message* message);
  void fail_peer(Node* node, PeerId id);
  void fail_sends(Node* node, PeerId id, const Status& status);
  void release(Send* send);
  static void unlink(Send* send);
  static Peer* find(Node* node, PeerId id);
  uint64_t random() { return random_.next(); }

  uint64_t now_ = 0;
  uint64_t order_ = 0;
  Random random_;
  std::priority_queue<Event> events_;
  std::deque<std::unique_ptr<Node>> nodes_;
  std::unordered_map<std::string, Node*> by_name_;
  std::unordered_map<uint64_t, std::unique_ptr<Link>> links_;
  MessagePool messages_;
  std::deque<Send> sends_;
  std::vector<Send*> free_sends_;
};

}  // namespace gradwire::transport::sim_internal
