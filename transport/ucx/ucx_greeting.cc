// The beginning of connections.
//
// The first message of every connection is an empty one of our own, the greeting, and the user's sends wait
// until it is out: from then on the socket is open, and what UCX exchanges to set an endpoint up has gone
// before. UCX 1.13 aborts the process where an endpoint is closed by force while its answer in that exchange
// still waits for the socket (openucx/ucx#8175); since nothing of the user's lies inside UCX before the
// greeting is out, such an endpoint can be closed gently instead.
#include <string>
#include <utility>

#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_worker.h"

namespace gradwire::transport::ucx_internal {

Status UcxTransport::receive(unsigned id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = id;
  handler.cb = callback;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  return status_of(ucp_worker_set_am_recv_handler(worker_, &handler), "cannot receive active messages");
}

Result<PeerId> UcxTransport::connect(std::string_view address) {
  auto body = unframe_address(address, options_.segment_bytes);
  GRADWIRE_RETURN_IF_ERROR(body.status());
  const std::string aligned(*body);  // UCX wants its address where it may read words

  auto peer = std::make_unique<Peer>();
  peer->transport = this;
  peer->id = static_cast<PeerId>(peers_.size() + 1);
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(aligned.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = on_endpoint_error;
  parameters.err_handler.arg = peer.get();
  if (const auto status = ucp_ep_create(worker_, &parameters, &peer->endpoint); status != UCS_OK) {
    return status_of(status, "cannot connect to the peer's address");
  }
  if (lane_.empty()) {
    lane_ = lane_of(peer->endpoint);
  }
  peers_.push_back(std::move(peer));
  const PeerId id = peers_.back()->id;
  if (const Status greeting = greet(peers_.back().get()); !greeting.ok()) {
    disconnect(id);
    return greeting;
  }
  return id;
}

Status UcxTransport::greet(Peer* peer) {
  const ucp_request_param_t parameters = eager(on_greeted, peer);
  ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->endpoint, kGreetingId, nullptr, 0, nullptr, 0, &parameters);
  if (UCS_PTR_IS_PTR(request)) {
    return ok_status();
  }
  peer->set_up = true;
  peer->greeted = UCS_PTR_STATUS(request) == UCS_OK;
  return status_of(UCS_PTR_STATUS(request), "cannot connect to the peer's address");
}

// It has done its work when it arrives.
ucs_status_t UcxTransport::on_greeting(void*, const void*, size_t, void*, size_t,
                                       const ucp_am_recv_param_t*) {
  return UCS_OK;
}

// Sends start after progress, as the sender is told then: see on_send_complete().
void UcxTransport::on_greeted(void* request, ucs_status_t status, void* user_data) {
  auto* peer = static_cast<Peer*>(user_data);
  ucp_request_free(request);
  peer->set_up = true;
  if (status != UCS_OK) {
    on_endpoint_error(peer, nullptr, status);  // what waits must hear of it, whatever else UCX says
  } else if (!peer->closing) {
    peer->transport->greeted_.push_back(peer->id);
  }
}

void UcxTransport::wait_for_greeting(Send* send) {
  Peer* peer = send->peer;
  (peer->waiting_last != nullptr ? peer->waiting_last->next_finished : peer->waiting_first) = send;
  peer->waiting_last = send;
}

UcxTransport::Send* UcxTransport::next_waiting(Peer* peer) {
  Send* send = peer->waiting_first;
  if (send != nullptr) {
    peer->waiting_first = std::exchange(send->next_finished, nullptr);
    if (peer->waiting_first == nullptr) {
      peer->waiting_last = nullptr;
    }
  }
  return send;
}

size_t UcxTransport::start_waiting() {
  size_t events = 0;
  for (size_t i = 0; i < greeted_.size(); ++i) {  // a sender that is told may connect, disconnect, send
    Peer* peer = find(greeted_[i]);
    if (peer == nullptr || peer->failed) {
      continue;
    }
    // What a sender that is told adds meanwhile waits behind the others.
    for (Send* send = next_waiting(peer); send != nullptr; send = next_waiting(peer)) {
      start(send);
      ++events;
    }
    peer->greeted = true;
  }
  greeted_.clear();
  return events;
}

// The connection is lost before anything of the user's was given to UCX.
void UcxTransport::end_waiting(Peer* peer) {
  const ucs_status_t error = peer->error;
  for (Send* send = next_waiting(peer); send != nullptr; send = next_waiting(peer)) {
    SendCompletion* done = send->done;
    unlink(send);
    release(send);
    done->on_sent(sent_status(error));
  }
}

}  // namespace gradwire::transport::ucx_internal
