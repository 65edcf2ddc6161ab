// What leaves this node: segment buffers, in a ring to the right neighbour.
#include <algorithm>

#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

// Segments that one operation encodes before the transport and the other operations get their turn.
constexpr uint32_t kInjectBurst = 2;
// What one link may do before the others get their turn, where sends complete at once.
constexpr size_t kLinkTurn = 16;

}  // namespace

void SendBuffer::on_sent(const Status& status) {
  core_.data_sent(*this, status);
}

SendBuffer* Core::acquire(Bucket& bucket) {
  count_segment();
  SendBuffer* const buffer = pool_.acquire();
  if (buffer == nullptr) {
    fail_operation(bucket,
                   Status(Code::kResourceExhausted,
                          "no memory for another segment buffer; " + std::to_string(pool_.size()) + " of " +
                              std::to_string(transport_.max_payload()) + " bytes are in use"));
  }
  return buffer;
}

void Core::send(Bucket& bucket, SendBuffer* buffer, const Outgoing& what) {
  Operation& operation = bucket.operation;
  Job& job = *bucket.job;
  buffer->bucket = &bucket;
  buffer->link = what.way == nullptr ? &job.right() : what.way;
  buffer->header = operation.header;
  buffer->header.kind = static_cast<uint8_t>(what.kind);
  buffer->header.hop = what.hop;
  buffer->header.chunk = what.chunk;
  buffer->header.segment = what.segment;
  buffer->header.payload_bytes = what.bytes;
  buffer->header.flags |= what.not_finite ? kMessageNotFinite : 0;
  buffer->header.checksum = message_checksum(buffer->header);

  count_sent(bucket, what.raw_bytes, what.bytes);
  ++operation.pending_sends;
  if (may_send(bucket, buffer->link->node)) {
    post(*buffer->link, buffer);
  } else {
    operation.ungranted.push_back(buffer->hook);
    ++operation.ungranted_count;
  }
}

// The engine's own buckets are not the job's traffic.
void Core::count_sent(Bucket& bucket, uint64_t raw_bytes, uint64_t payload_bytes) {
  const auto count = [raw_bytes, payload_bytes](auto& to) {
    to.raw_bytes += raw_bytes;
    to.payload_bytes += payload_bytes;
    to.header_bytes += sizeof(MessageHeader);
  };
  count(bucket.counters);
  if (!bucket.own) {
    count(bucket.job->traffic);
  }
}

void Core::post(Link& link, SendBuffer* buffer) {
  if (link.queue.empty() && link.in_flight < window_) {
    transmit(link, buffer);
  } else {
    link.queue.push_back(buffer->hook);
  }
}

void Core::transmit(Link& link, SendBuffer* buffer) {
  ++link.in_flight;
  // May call on_sent before it returns: the buffer is not ours any more.
  transport_.send(link.peer, bytes_of(buffer->header), {buffer->data, buffer->header.payload_bytes}, buffer);
}

bool Core::has_room(const Bucket& bucket) const {
  const Operation& operation = bucket.operation;
  const Link& link = *operation.way;
  if (bucket.job->failed) {
    return false;
  }
  if (!may_send(bucket, link.node)) {
    // A broadcast's root waits for nobody else: it must not be done before anybody has started.
    return operation.signature.operation != layout::kOpBroadcast && operation.ungranted_count < window_;
  }
  return operation.burst < kInjectBurst && link.queue.empty() && link.in_flight < window_;
}

void Core::wait_for_room(Bucket& bucket, std::coroutine_handle<> waiter) {
  Operation& operation = bucket.operation;
  operation.injector = waiter;
  operation.burst = 0;
  Link& link = *operation.way;
  if (may_send(bucket, link.node)) {
    link.waiters.push_back(operation.room_hook);
    ready_links_.push_back(link.ready_hook);
  }
}

void Core::yield(Bucket& bucket, std::coroutine_handle<> waiter) {
  bucket.operation.injector = waiter;
  bucket.job->yielded.push_back(bucket.operation.room_hook);
}

// Fills the link: what is queued first, then operations that wait to encode, each at most once. What is left
// over although there is room comes next time.
size_t Core::pump(Link& link) {
  size_t work = 0;
  while (work < kLinkTurn && link.in_flight < window_ && !link.queue.empty()) {
    transmit(link, link.queue.pop_front());
    ++work;
  }
  List<Bucket> turn;
  turn.append(link.waiters);
  while (work < kLinkTurn && link.queue.empty() && link.in_flight < window_ && !turn.empty()) {
    Operation& operation = turn.pop_front()->operation;
    std::exchange(operation.injector, nullptr).resume();
    ++work;
  }
  turn.append(link.waiters);  // those without a turn stay in front
  link.waiters.append(turn);
  if (link.in_flight < window_ && (!link.queue.empty() || !link.waiters.empty())) {
    ready_links_.push_back(link.ready_hook);
  }
  return work;
}

void Core::data_sent(SendBuffer& buffer, const Status& status) {
  Bucket& bucket = *buffer.bucket;
  Link& link = *buffer.link;
  pool_.release(&buffer);
  --link.in_flight;
  if (!link.queue.empty() || !link.waiters.empty()) {
    ready_links_.push_back(link.ready_hook);
  }
  if (!status.ok()) {
    lose(*bucket.job, link.node, status);
  }
  sent_one(bucket);
}

void Core::sent_one(Bucket& bucket) {
  --bucket.operation.pending_sends;
  retire_if_over(bucket);
}

// Messages that the transport has not got.
void Core::drop_sends(List<SendBuffer>& list) {
  while (SendBuffer* const buffer = list.pop_front()) {
    Bucket& bucket = *buffer->bucket;
    pool_.release(buffer);
    sent_one(bucket);
  }
}

}  // namespace gradwire::engine
