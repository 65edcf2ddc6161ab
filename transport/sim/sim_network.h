// SimNetwork: a network in one thread and in virtual time, with faults, decided entirely by a seed.
//
// It implements the Transport contract for tests: the engines that run over UCX run over it unchanged.
// Time stands still until step() or advance_to() moves it, so a test drives like this: poll every engine
// until none does work, then move to the earlier of next_event_ns() and the engines' next timer.
//
// What a test may rely on: messages of one sender to one receiver keep their order; the bytes of a message
// are read when it leaves (or inside send(), for those sends that complete there), and are shown to the
// receiver at odd addresses; on_sent comes inside send(), when the message has left, or later than its
// arrival, as the seed decides. Destroying a transport aborts its sends and looks to its peers like kill().
//
// Nodes are named; a name that was never created is a mistake of the test and ends the process.
// Single-threaded, together with all its transports; they may outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace gradwire::transport {

struct SimOptions {
  uint64_t seed = 1;
  uint64_t latency_ns = 20'000;         // from the last byte's departure to its arrival
  uint64_t jitter_ns = 0;               // up to this much is added to each latency; order is kept
  uint64_t bytes_per_second = 0;        // of each directed link; 0 is infinite
  size_t max_payload = 130'048;         // bytes
  uint32_t send_window = 8;             // what send_window() advises; the network itself sets no limit
  uint64_t error_delay_ns = 1'000'000;  // from a death (or the first send after it) to on_peer_error
  uint32_t inline_completions = 64;     // of 256 sends, how many complete inside send()
  uint32_t late_completions = 32;  // of 256 others, how many complete up to two latencies after they left
};

// A message on its way out, for a filter to look at and to change. A header that ends up longer than
// kMaxHeaderBytes is dropped by the receiving transport, as the contract promises.
struct SimMessage {
  std::string_view from, to;
  std::vector<std::byte> header, payload;
};
// Returns how many copies arrive: 0 drops the message, 2 duplicates it.
using MessageFilter = std::function<int(SimMessage&)>;

namespace sim_internal {
class Core;
}

class SimNetwork {
 public:
  explicit SimNetwork(const SimOptions& options = {});
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // A name whose node is alive restarts: the older node is killed first. A restarted node has another address
  // and links in their original state.
  std::unique_ptr<Transport> create_node(std::string_view name);

  uint64_t now_ns() const;
  std::optional<uint64_t> next_event_ns();
  bool step();  // moves to the next event's time and delivers all of that time; false if none
  bool advance_to(uint64_t ns);  // delivers all events up to ns; the clock ends at ns; true if there were any

  // Faults.
  void kill(std::string_view node);                   // silent for ever; what had left still arrives
  void cut(std::string_view a, std::string_view b);   // both directions; nobody is told, nothing is lost
  void heal(std::string_view a, std::string_view b);  // what waited goes on
  void reset(std::string_view a,
             std::string_view b);  // both ends' peers fail now; what was under way is lost
  void set_link(std::string_view from, std::string_view to, uint64_t latency_ns, uint64_t bytes_per_second);
  void set_filter(MessageFilter filter);  // sees every message when it leaves; nullptr removes it
  void inject(std::string_view from, std::string_view to, std::span<const std::byte> header,
              std::span<const std::byte> payload);  // a message that `from` never sent

  // A hash over every delivery (time, link, sizes, header): equal seeds and equal use give equal
  // fingerprints.
  uint64_t fingerprint() const;
  uint64_t deliveries() const;

 private:
  std::shared_ptr<sim_internal::Core> core_;
};

}  // namespace gradwire::transport
