#include "transport/ucx/ucx_transport.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/ucx/host_addresses.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_inventory.h"
#include "transport/ucx/ucx_worker.h"

namespace gradwire::transport {
namespace ucx_internal {
namespace {

constexpr int kCloseRounds = 200'000;  // of progress, until closing endpoints are given up

}  // namespace

Status sent_status(ucs_status_t status) {
  return status == UCS_OK ? ok_status()
                          : Status(Code::kUnavailable, std::string("the send failed: UCX says '") +
                                                           ucs_status_string(status) + "'");
}

ucp_request_param_t eager(ucp_send_nbx_callback_t callback, void* user_data) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  parameters.cb.send = callback;
  parameters.user_data = user_data;
  return parameters;
}

Status UcxTransport::open() {
  auto context = create_context(options_);
  GRADWIRE_RETURN_IF_ERROR(context.status());
  context_ = *context;

  const auto listening = PortGuard::listening();
  GRADWIRE_RETURN_IF_ERROR(listening.status());
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  GRADWIRE_RETURN_IF_ERROR(
      status_of(ucp_worker_create(context_, &worker, &worker_), "cannot create a UCX worker"));
  GRADWIRE_RETURN_IF_ERROR(guard_.adopt(*listening));

  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  GRADWIRE_RETURN_IF_ERROR(status_of(ucp_worker_query(worker_, &attributes), "cannot query the UCX worker"));
  if (attributes.max_am_header < kMaxHeaderBytes) {
    return {Code::kUnsupported, "UCX's transports '" + options_.tls + "' carry headers of at most " +
                                    std::to_string(attributes.max_am_header) + " bytes, but " +
                                    std::to_string(kMaxHeaderBytes) + " are needed"};
  }

  GRADWIRE_RETURN_IF_ERROR(receive(kMessageId, on_active_message));
  GRADWIRE_RETURN_IF_ERROR(receive(kGreetingId, on_greeting));
  GRADWIRE_RETURN_IF_ERROR(
      status_of(ucp_worker_get_efd(worker_, &event_fd_), "cannot sleep on UCX's events"));

  ucp_address_t* address = nullptr;
  size_t size = 0;
  GRADWIRE_RETURN_IF_ERROR(
      status_of(ucp_worker_get_address(worker_, &address, &size), "cannot tell the UCX worker's address"));
  address_ = frame_address({reinterpret_cast<const char*>(address), size}, options_.segment_bytes);
  ucp_worker_release_address(worker_, address);
  return ok_status();
}

UcxTransport::~UcxTransport() {
  receiver_ = nullptr;
  for (size_t id = 1; id <= peers_.size(); ++id) {
    disconnect(static_cast<PeerId>(id));
  }
  for (int round = 0; round < kCloseRounds && !closing_.empty(); ++round) {
    ucp_worker_progress(worker_);
    reap_closed();
  }
  for (const auto& peer : closing_) {
    if (peer->endpoint != nullptr) {
      start_close(peer.get(), 0);
    }
    if (peer->close_request != nullptr) {
      ucp_request_free(peer->close_request);
    }
  }
  guard_.release();
  if (worker_ != nullptr) {
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) {
    ucp_cleanup(context_);
  }
}

std::string UcxTransport::devices() const {
  return set_by_user("NET_DEVICES") ? std::getenv("UCX_NET_DEVICES") : options_.net_devices;
}

std::vector<std::string> UcxTransport::hosts() const {
  return HostAddresses().of_devices(devices());
}

Status UcxTransport::admit(std::span<const std::string> hosts) {
  const HostAddresses here;
  Status status = guard_.admit(here.without_own_unless_complete(hosts, here.of_devices(devices())));
  if (status.code() == Code::kUnsupported && !std::exchange(unguarded_, true)) {
    std::fprintf(stderr, "gradwire: %s; whoever reaches it can end this process\n", status.message().c_str());
  }
  return status;
}

void UcxTransport::send(PeerId id, std::span<const std::byte> header, std::span<const std::byte> payload,
                        SendCompletion* done) {
  Peer* peer = find(id);
  if (peer == nullptr) {
    return done->on_sent(
        {Code::kUnavailable, "cannot send: peer " + std::to_string(id) + " is not connected"});
  }
  if (peer->failed) {
    return done->on_sent({Code::kUnavailable, "cannot send: the connection is lost ('" +
                                                  std::string(ucs_status_string(peer->error)) +
                                                  "'); connect again"});
  }
  if (header.size() > kMaxHeaderBytes || payload.size() > max_payload()) {
    return done->on_sent({Code::kInvalidArgument,
                          "cannot send " + std::to_string(header.size()) + " + " +
                              std::to_string(payload.size()) + " bytes: header and payload are limited to " +
                              std::to_string(kMaxHeaderBytes) + " and " + std::to_string(max_payload())});
  }
  Send* send = acquire(peer, done);
  send->payload = payload;
  send->header_size = header.size();
  if (!header.empty()) {
    std::memcpy(send->header.data(), header.data(), header.size());
  }
  if (!peer->greeted) {
    return wait_for_greeting(send);
  }
  start(send);
}

void UcxTransport::start(Send* send) {
  const ucp_request_param_t parameters = eager(on_send_complete, send);
  send->started = true;
  ++send->peer->unfinished;
  ucs_status_ptr_t request =
      ucp_am_send_nbx(send->peer->endpoint, kMessageId, send->header.data(), send->header_size,
                      send->payload.data(), send->payload.size(), &parameters);
  if (!UCS_PTR_IS_PTR(request)) {
    SendCompletion* done = send->done;
    finish(send, UCS_PTR_STATUS(request));
    unlink(send);
    release(send);
    done->on_sent(sent_status(UCS_PTR_STATUS(request)));
  }
}

// The sender is told after progress, never from here: while UCX works through the requests that wait for an
// endpoint, a further send to it would overtake those that still wait.
void UcxTransport::on_send_complete(void* request, ucs_status_t status, void* user_data) {
  auto* send = static_cast<Send*>(user_data);
  UcxTransport* self = send->transport;
  ucp_request_free(request);
  self->finish(send, status);
  (self->finished_last_ != nullptr ? self->finished_last_->next_finished : self->finished_first_) = send;
  self->finished_last_ = send;
}

void UcxTransport::finish(Send* send, ucs_status_t status) {
  send->finished = true;
  send->status = status;
  if (send->peer != nullptr) {
    --send->peer->unfinished;
  }
  if (status == UCS_OK) {
    ++counters_.messages_sent;
    counters_.bytes_sent += send->header_size + send->payload.size();
  }
}

size_t UcxTransport::tell_finished() {
  size_t events = 0;
  while (Send* send = finished_first_) {
    finished_first_ = send->next_finished;
    if (finished_first_ == nullptr) {
      finished_last_ = nullptr;
    }
    SendCompletion* done = send->done;
    const ucs_status_t status = send->status;
    if (done != nullptr) {
      unlink(send);
    }
    release(send);
    if (done != nullptr) {
      done->on_sent(sent_status(status));
      ++events;
    }
  }
  return events;
}

UcxTransport::Send* UcxTransport::acquire(Peer* peer, SendCompletion* done) {
  if (free_sends_ == nullptr) {
    free_sends_ = &sends_.emplace_back();
  }
  Send* send = free_sends_;
  free_sends_ = send->next;
  send->transport = this;
  send->peer = peer;
  send->done = done;
  send->started = false;
  send->finished = false;
  send->next_finished = nullptr;
  send->previous = nullptr;
  send->next = peer->first;
  if (peer->first != nullptr) {
    peer->first->previous = send;
  }
  peer->first = send;
  return send;
}

void UcxTransport::unlink(Send* send) {
  (send->previous != nullptr ? send->previous->next : send->peer->first) = send->next;
  if (send->next != nullptr) {
    send->next->previous = send->previous;
  }
}

void UcxTransport::release(Send* send) {
  send->next = free_sends_;
  free_sends_ = send;
}

void UcxTransport::refuse(const char* what) {
  if (refused_++ == 0) {
    std::fprintf(stderr, "gradwire: refused a message that no Gradwire transport sends: %s\n", what);
  }
}

ucs_status_t UcxTransport::on_active_message(void* argument, const void* header, size_t header_size,
                                             void* data, size_t size, const ucp_am_recv_param_t* parameters) {
  auto* self = static_cast<UcxTransport*>(argument);
  if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self->refuse("a rendezvous");
    return UCS_OK;  // UCX drops it
  }
  if (header_size > kMaxHeaderBytes) {
    self->refuse("a header of more than 128 bytes");
    return UCS_OK;
  }
  if (self->receiver_ == nullptr) {
    return UCS_OK;
  }
  const std::span header_bytes(static_cast<const std::byte*>(header), header_size);
  const std::span payload(static_cast<const std::byte*>(data), size);
  // A message to oneself arrives inside send(), and others arrive during a disconnect: they wait for poll(),
  // and so does what follows them.
  if (!self->delivering_ || !self->held_.empty()) {
    self->held_.push_back({{header_bytes.begin(), header_bytes.end()}, {payload.begin(), payload.end()}});
    return UCS_OK;
  }
  self->delivering_ = false;
  self->deliver(header_bytes, payload);
  self->delivering_ = true;
  return UCS_OK;
}

void UcxTransport::deliver(std::span<const std::byte> header, std::span<const std::byte> payload) {
  ++counters_.messages_received;
  counters_.bytes_received += header.size() + payload.size();
  receiver_->on_message(header, payload);
}

// UCX may call this from inside any of its functions; the receiver is told by poll().
void UcxTransport::on_endpoint_error(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(argument);
  if (!std::exchange(peer->failed, true) && !peer->closing) {
    peer->error = status;
    peer->transport->failed_.push_back(peer->id);
  }
}

}  // namespace ucx_internal

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options) {
  auto transport = std::make_unique<ucx_internal::UcxTransport>(options);
  GRADWIRE_RETURN_IF_ERROR(transport->open());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace gradwire::transport
