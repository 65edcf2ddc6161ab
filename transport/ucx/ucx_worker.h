// The worker behind make_ucx_transport(). Included by transport/ucx only.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/port_guard.h"
#include "transport/ucx/ucx_transport.h"

namespace gradwire::transport::ucx_internal {

inline constexpr unsigned kMessageId = 1;
inline constexpr unsigned kGreetingId = 2;

Status sent_status(ucs_status_t status);  // what the sender is told
// Of an eager active message, told to `callback` when UCX is done with it.
ucp_request_param_t eager(ucp_send_nbx_callback_t callback, void* user_data);

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxOptions& options) : options_(options) {}
  ~UcxTransport() override;
  Status open();  // once, before anything else

  void set_receiver(Receiver* receiver) override { receiver_ = receiver; }
  std::string_view name() const override { return lane_.empty() ? options_.tls : lane_; }
  std::string address() const override { return address_; }
  Result<PeerId> connect(std::string_view address) override;
  void disconnect(PeerId id) override;
  void send(PeerId id, std::span<const std::byte> header, std::span<const std::byte> payload,
            SendCompletion* done) override;
  std::vector<std::string> hosts() const override;
  Status admit(std::span<const std::string> hosts) override;
  size_t max_payload() const override { return options_.segment_bytes - 1024; }
  uint32_t send_window() const override { return options_.send_window; }
  size_t poll() override;
  bool arm() override;
  int event_fd() const override { return event_fd_; }
  TransportCounters counters() const override { return counters_; }

 private:
  struct Peer;
  // A send from the call to the sender's being told. Pooled, so that a send allocates nothing.
  struct Send {
    UcxTransport* transport = nullptr;
    Send* previous = nullptr;
    Send* next = nullptr;           // in the peer's list, or in the list of free ones
    Send* next_finished = nullptr;  // in the queue of those to tell, or of those that wait for the greeting
    Peer* peer = nullptr;
    SendCompletion* done = nullptr;  // nullptr once told
    std::span<const std::byte> payload;
    size_t header_size = 0;
    bool started = false;   // UCX has it
    bool finished = false;  // UCX is done with it
    ucs_status_t status = UCS_OK;
    // UCX reads a header until the send is complete.
    std::array<std::byte, kMaxHeaderBytes> header;
  };
  struct Peer {
    UcxTransport* transport = nullptr;
    PeerId id = 0;
    ucp_ep_h endpoint = nullptr;    // null once its close has begun
    Send* first = nullptr;          // not yet told
    uint32_t unfinished = 0;        // of those, how many UCX holds
    Send* waiting_first = nullptr;  // of those, what waits for the greeting; oldest first
    Send* waiting_last = nullptr;
    bool greeted = false;  // our greeting is on its way: what follows is given to UCX at once
    bool set_up = false;   // UCX is done with the greeting, well or not
    bool closing = false;
    bool failed = false;  // UCX has reported an error
    ucs_status_t error = UCS_OK;
    void* close_request = nullptr;
  };
  struct Held {
    std::vector<std::byte> header, payload;
  };

  static ucs_status_t on_active_message(void* self, const void* header, size_t header_size, void* data,
                                        size_t size, const ucp_am_recv_param_t* parameters);
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  static void on_send_complete(void* request, ucs_status_t status, void* send);
  static ucs_status_t on_greeting(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*);
  static void on_greeted(void* request, ucs_status_t status, void* peer);

  Peer* find(PeerId id) const { return id == 0 || id > peers_.size() ? nullptr : peers_[id - 1].get(); }
  unsigned progress();
  void deliver(std::span<const std::byte> header, std::span<const std::byte> payload);
  Status receive(unsigned id, ucp_am_recv_callback_t callback);
  Status greet(Peer* peer);
  size_t start_waiting();
  void end_waiting(Peer* peer);
  static void wait_for_greeting(Send* send);
  static Send* next_waiting(Peer* peer);
  void start(Send* send);
  static bool may_close(const Peer& peer) { return peer.set_up || peer.failed; }
  static void start_close(Peer* peer, uint32_t flags);
  void end_sends(Peer* peer);
  size_t tell_finished();
  void finish(Send* send, ucs_status_t status);
  size_t deliver_held();
  size_t report_errors();
  void reap_closed();
  void refuse(const char* what);
  Send* acquire(Peer* peer, SendCompletion* done);
  std::string devices() const;  // as UCX_NET_DEVICES
  static void unlink(Send* send);
  void release(Send* send);

  const UcxOptions options_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  PortGuard guard_;
  int event_fd_ = -1;
  std::string address_, lane_;
  Receiver* receiver_ = nullptr;
  TransportCounters counters_;
  std::vector<std::unique_ptr<Peer>> peers_;    // by PeerId - 1; null after disconnect
  std::vector<std::unique_ptr<Peer>> closing_;  // disconnected, but UCX has not finished closing them
  std::vector<PeerId> greeted_;                 // whose waiting sends may start
  std::vector<PeerId> failed_;                  // errors that the receiver was not told yet
  std::deque<Held> held_;                       // arrived while the receiver could not be called
  std::deque<Send> sends_;
  Send* free_sends_ = nullptr;
  Send* finished_first_ = nullptr;  // oldest first
  Send* finished_last_ = nullptr;
  bool progressing_ = false;  // inside ucp_worker_progress(), which may not be nested
  bool delivering_ = false;   // inside poll()'s progress, where the receiver may be called
  bool unguarded_ = false;    // admit() has said that it cannot keep anybody out
  uint64_t refused_ = 0;
};

}  // namespace gradwire::transport::ucx_internal
