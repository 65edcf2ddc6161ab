// "I have started this operation: send." Who may send, and who has said so too early.
#include <algorithm>

#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

// A broadcast's root depends on nobody, so that nothing but grants would bound it; and every node sends them,
// the root too, so that two nodes which both take themselves for the root notice it.
void Core::expect_grants(Bucket& bucket) {
  Operation& operation = bucket.operation;
  const uint32_t nodes = bucket.job->spec.nodes;
  operation.needs_grant = nodes > 1 && !is_small(bucket, operation.signature.operation);
  operation.grants_left = !operation.needs_grant ? 0 : operation.signature.direct ? nodes - 1 : 1;
  if (operation.signature.direct) {
    std::fill(bucket.direct->granted.begin(), bucket.direct->granted.end(), operation.needs_grant ? 0 : 1);
  }
}

// Those that this node sends to may have started before it. False: one has started something else.
bool Core::take_stored_grants(Bucket& bucket) {
  for (const Link& link : bucket.job->links) {
    if (sends_to(bucket, link.node) && !take_stored_grant(bucket, link.node)) {
      return false;
    }
  }
  return true;
}

bool Core::take_stored_grant(Bucket& bucket, uint32_t from) {
  Operation& operation = bucket.operation;
  const auto first = std::find_if(bucket.grants.begin(), bucket.grants.end(),
                                  [from](const StoredGrant& grant) { return grant.from == from; });
  if (first == bucket.grants.end() || (first->sequence > operation.sequence && !operation.needs_grant)) {
    return true;
  }
  if (first->sequence != operation.sequence || !operation.needs_grant ||
      first->signature != operation.signature) {
    fail(*bucket.job,
         Status(Code::kMismatch, operation_label(bucket, operation.sequence) + ": " +
                                     node_label(*bucket.job, bucket.job->spec.node_index) + " expects " +
                                     describe(operation.signature) + ", but " +
                                     node_label(*bucket.job, from) + " has started operation " +
                                     std::to_string(first->sequence) + ", " + describe(first->signature)));
    return false;
  }
  bucket.grants.erase(first);
  open_for_sending(bucket, from);
  return true;
}

// To those that will send to this node.
void Core::send_grants(Bucket& bucket) {
  Job& job = *bucket.job;
  MessageHeader header = bucket.operation.header;
  header.kind = static_cast<uint8_t>(MessageKind::kGrant);
  header.checksum = message_checksum(header);
  for (Link& link : job.links) {
    if (hears_from(bucket, link.node)) {
      count_sent(bucket, 0, 0);
      ++bucket.operation.pending_sends;
      transport_.send(link.peer, bytes_of(header), {}, &bucket.grant_sends[link.node]);
    }
  }
}

// The node has granted the operation: what waited may go.
void Core::open_for_sending(Bucket& bucket, uint32_t node) {
  Operation& operation = bucket.operation;
  Link& link = bucket.job->links[node];
  --operation.grants_left;
  if (operation.signature.direct) {
    bucket.direct->granted[node] = 1;
  }
  List<SendBuffer> waiting;
  waiting.append(operation.ungranted);
  while (SendBuffer* const buffer = waiting.pop_front()) {
    if (buffer->link == &link) {
      --operation.ungranted_count;
      post(link, buffer);
    } else {
      operation.ungranted.push_back(buffer->hook);
    }
  }
  if (operation.injector && operation.way == &link) {
    link.waiters.push_back(operation.room_hook);
    ready_links_.push_back(link.ready_hook);
  }
  retire_if_over(bucket);
}

void Core::on_grant(Bucket& bucket, const MessageHeader& header) {
  Operation& operation = bucket.operation;
  const Signature signature = signature_of(header);
  const bool started = operation.state != OperationState::kIdle && header.sequence == operation.sequence;
  const uint32_t from = header.from_node;
  if (started && signature == operation.signature && !may_send(bucket, from)) {
    open_for_sending(bucket, from);
    return;
  }
  if (bucket.removed) {
    ++counters_.after_end;
    return;
  }
  uint64_t last = operation.sequence;
  uint32_t stored = 0;
  for (const StoredGrant& grant : bucket.grants) {
    if (grant.from == from) {
      last = grant.sequence;
      ++stored;
    }
  }
  if (!started && header.sequence > last && stored < bucket.job->spec.nodes) {
    StoredGrant grant;
    grant.from = from;
    grant.sequence = header.sequence;
    grant.signature = signature;
    bucket.grants.push_back(grant);
    return;
  }
  const Job& job = *bucket.job;
  const std::string mine =
      started ? describe(operation.signature) : "no grant of operation " + std::to_string(header.sequence);
  fail(*bucket.job,
       Status(Code::kMismatch, operation_label(bucket, operation.sequence) + ": " +
                                   node_label(job, job.spec.node_index) + " expects " + mine + ", but " +
                                   node_label(job, from) + " has started operation " +
                                   std::to_string(header.sequence) + ", " + describe(signature)));
}

void GrantSend::on_sent(const Status& status) {
  core_.grant_sent(*bucket_, to_, status);
}

void Core::grant_sent(Bucket& bucket, uint32_t to, const Status& status) {
  if (!status.ok()) {
    lose(*bucket.job, to, status);
  }
  sent_one(bucket);
}

}  // namespace gradwire::engine
