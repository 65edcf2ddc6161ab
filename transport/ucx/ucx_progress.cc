// Progress, sleep and the end of connections.
#include <cstdio>
#include <utility>

#include "transport/ucx/ucx_worker.h"

namespace gradwire::transport::ucx_internal {
namespace {

constexpr int kDrainRounds = 10'000;  // of progress: about 30 ms on tcp

}  // namespace

unsigned UcxTransport::progress() {
  progressing_ = true;
  const unsigned events = ucp_worker_progress(worker_);
  progressing_ = false;
  return events;
}

size_t UcxTransport::poll() {
  size_t events = held_.empty() ? 0 : deliver_held();
  delivering_ = true;
  events += progress();
  delivering_ = false;
  if (!greeted_.empty()) {
    events += start_waiting();
  }
  events += tell_finished();
  if (!failed_.empty()) {
    events += report_errors();
  }
  if (!closing_.empty()) {
    reap_closed();
  }
  return events;
}

bool UcxTransport::arm() {
  // Anything but UCS_OK (nearly always UCS_ERR_BUSY) means that sleeping could miss something.
  return held_.empty() && greeted_.empty() && failed_.empty() && finished_first_ == nullptr &&
         ucp_worker_arm(worker_) == UCS_OK;
}

size_t UcxTransport::deliver_held() {
  size_t events = 0;
  for (size_t waiting = held_.size(); waiting > 0; --waiting) {
    const Held message = std::move(held_.front());
    held_.pop_front();
    deliver(message.header, message.payload);
    ++events;
  }
  return events;
}

size_t UcxTransport::report_errors() {
  size_t events = 0;
  for (size_t i = 0; i < failed_.size(); ++i) {  // the receiver may disconnect, connect, cause more
    const PeerId id = failed_[i];
    Peer* peer = find(id);
    if (peer == nullptr) {
      continue;
    }
    end_waiting(peer);
    peer = find(id);
    if (peer == nullptr) {
      continue;
    }
    ++events;
    receiver_->on_peer_error(
        id, {Code::kUnavailable, std::string("the connection to the peer is lost: UCX says '") +
                                     ucs_status_string(peer->error) + "'"});
  }
  failed_.clear();
  return events;
}

void UcxTransport::disconnect(PeerId id) {
  if (find(id) == nullptr) {
    return;
  }
  closing_.push_back(std::move(peers_[id - 1]));
  Peer* peer = closing_.back().get();
  peer->closing = true;
  if (may_close(*peer)) {
    start_close(peer, UCP_EP_CLOSE_FLAG_FORCE);
  }
  // A forced close cancels what waits inside UCX at once; progress collects the rest, unless this is called
  // from inside it. No code of the user runs until UCX is left.
  if (!progressing_) {
    for (int round = 0; round < kDrainRounds && peer->unfinished > 0; ++round) {
      progress();
    }
  }
  end_sends(peer);
}

void UcxTransport::start_close(Peer* peer, uint32_t flags) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = flags;
  void* request = ucp_ep_close_nbx(peer->endpoint, &parameters);
  peer->endpoint = nullptr;
  peer->close_request = UCS_PTR_IS_PTR(request) ? request : nullptr;
}

// The records that UCX had go back to the pool in tell_finished(), those that it still holds when it lets go.
void UcxTransport::end_sends(Peer* peer) {
  Send* send = std::exchange(peer->first, nullptr);
  peer->waiting_first = peer->waiting_last = nullptr;
  while (send != nullptr) {
    Send* next = send->next;
    SendCompletion* done = std::exchange(send->done, nullptr);
    const bool arrived = send->finished && send->status == UCS_OK;
    send->peer = nullptr;
    if (!send->started) {
      release(send);
    }
    done->on_sent(arrived ? ok_status() : Status(Code::kAborted, "the connection was closed"));
    send = next;
  }
}

void UcxTransport::reap_closed() {
  std::erase_if(closing_, [](const std::unique_ptr<Peer>& peer) {
    if (peer->endpoint != nullptr) {
      if (!may_close(*peer)) {
        return false;
      }
      start_close(peer.get(), UCP_EP_CLOSE_FLAG_FORCE);
    }
    if (peer->close_request != nullptr) {
      if (ucp_request_check_status(peer->close_request) == UCS_INPROGRESS) {
        return false;
      }
      ucp_request_free(std::exchange(peer->close_request, nullptr));
    }
    return peer->set_up;  // UCX may still tell it of its greeting
  });
}

}  // namespace gradwire::transport::ucx_internal
