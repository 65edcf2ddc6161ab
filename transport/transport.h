// Transport: messages between the engines of two nodes.
//
// One Transport belongs to one thread: every call and every callback happens on it. Messages of one peer
// arrive in the order in which they were sent, whole or not at all. A transport knows nothing of jobs or
// collectives.
//
// Callbacks come from poll() only; on_sent comes from send() and disconnect(), too. Inside a callback
// everything is allowed except poll() and destruction.
//
// Errors end a peer, not the process: after on_peer_error(peer) nothing more is sent to it; the user calls
// disconnect(peer) and may connect again. A silent network is not detected here: heartbeats are the control
// plane's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/result.h"

namespace gradwire::transport {

using PeerId = uint32_t;  // a handle of this transport, never reused within its life

inline constexpr size_t kMaxHeaderBytes = 128;
inline constexpr size_t kMaxHosts = 64;  // addresses of one transport

// Told when the memory of a send may be used again. Owned by the sender; stays alive until it was called.
class SendCompletion {
 public:
  virtual void on_sent(const Status& status) = 0;  // exactly once a send, possibly inside send()

 protected:
  ~SendCompletion() = default;
};

class Receiver {
 public:
  // Both spans are valid during the call only, and may be unaligned. The bytes come from the network: nothing
  // about them has been checked except that header.size() <= kMaxHeaderBytes.
  virtual void on_message(std::span<const std::byte> header, std::span<const std::byte> payload) = 0;
  virtual void on_peer_error(PeerId peer, const Status& status) = 0;

 protected:
  ~Receiver() = default;
};

// Counted since creation; what status shows and what tests compare with the interface's counters.
struct TransportCounters {
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;  // headers + payloads, without the transport's own framing
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual void set_receiver(Receiver* receiver) = 0;  // before the first poll()
  virtual std::string_view name() const = 0;          // "tcp", "rc", "sim": the path in use
  virtual std::string address() const = 0;            // opaque bytes; the other side gives them to connect()

  // Does not wait for the peer. Sends may follow at once.
  virtual Result<PeerId> connect(std::string_view address) = 0;
  // Everything in flight to the peer completes with kAborted before this returns. Closes our direction only:
  // what the peer had sent, or goes on sending, still arrives.
  virtual void disconnect(PeerId peer) = 0;

  // header.size() <= kMaxHeaderBytes (copied), payload.size() <= max_payload() (must stay valid and unchanged
  // until `done`). Never blocks. A failure is reported through `done`, too. Allocates nothing in steady
  // state.
  virtual void send(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
                    SendCompletion* done) = 0;

  // Numeric addresses of this host from which its messages may come, at most kMaxHosts; what another node's
  // admit() is told. Empty where the notion has no meaning.
  virtual std::vector<std::string> hosts() const { return {}; }
  // From now on only these hosts (numeric addresses) may open connections to this transport; everybody before
  // the first call, which ends connections that others have opened. What is open stays open otherwise.
  // Whoever is refused hears nothing, and is tried again by its kernel after a second: admit, then connect.
  // kInvalidArgument: not a numeric address. kResourceExhausted: too many of them. On either everything stays
  // as it was, and the caller's job fails. kUnsupported: the system cannot do it, and everybody may connect.
  // The transport says so on standard error, once in its life; its callers go on.
  virtual Status admit(std::span<const std::string> hosts) {
    (void)hosts;
    return ok_status();
  }

  virtual size_t max_payload() const = 0;    // bytes; also the best size of a bulk segment
  virtual uint32_t send_window() const = 0;  // sends in flight per peer beyond which more brings nothing

  virtual size_t poll() = 0;  // makes progress and runs callbacks; returns events handled
  // Before sleeping on event_fd(): true if it is safe to sleep, false if poll() must be called first.
  virtual bool arm() = 0;
  virtual int event_fd() const = 0;  // -1 where there is nothing to sleep on (sim)
  virtual TransportCounters counters() const = 0;
};

}  // namespace gradwire::transport
