// What arrives: from the transport's call to the coroutine that waits for it. Everything is checked here; a
// message with an unknown key is nobody's and dropped, one with a known key that does not fit ends its job.
#include <new>

#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"

namespace gradwire::engine {

namespace {

// Whom a damaged message is from: a header that is whole tells, of another one only who may send at all.
std::string origin(const Job& job, const MessageHeader& header) {
  if (header.checksum == message_checksum(header) && header.from_node < job.spec.nodes) {
    return node_label(job, header.from_node);
  }
  if (job.any_direct) {
    return "one of the other " + std::to_string(job.spec.nodes - 1) + " nodes";
  }
  const std::string left = node_label(job, job.left_node);
  return job.left_node == job.right_node ? left : left + " or " + node_label(job, job.right_node);
}

}  // namespace

void Core::on_message(std::span<const std::byte> bytes, std::span<const std::byte> payload) {
  EpochKey key;
  if (!read_key(bytes, &key)) {
    ++counters_.malformed;
    return;
  }
  Job* const job = find_key(key);
  if (job == nullptr) {
    ++counters_.unknown_key;
    return;
  }
  if (job->failed) {
    ++counters_.after_end;
    return;
  }
  MessageHeader header{};
  const std::string_view wrong = parse_message(bytes, payload.size(), &header);
  if (!wrong.empty()) {
    fail(*job, Status(Code::kCorrupt,
                      "a damaged message came from " + origin(*job, header) + ": " + std::string(wrong)));
    return;
  }
  const bool grant = header.kind == static_cast<uint8_t>(MessageKind::kGrant);
  const bool direct = (header.flags & kMessageDirect) != 0;
  const uint32_t neighbour = grant ? job->right_node : job->left_node;
  const uint32_t sender = header.from_node;
  if (direct ? sender >= job->spec.nodes || sender == job->spec.node_index
             : job->spec.nodes == 1 || sender != neighbour) {
    fail(*job,
         Status(Code::kMismatch, "a " + std::string(message_kind_name(header.kind)) + " message names node " +
                                     std::to_string(sender) + " as its sender, but only " +
                                     (direct ? "other nodes" : node_label(*job, neighbour)) +
                                     " may send it to " + node_label(*job, job->spec.node_index)));
    return;
  }
  Bucket* bucket = job->buckets.find(header.bucket);
  if (bucket == nullptr) {
    // The other nodes may have been told of a bucket before this one.
    if (job->announced >= kMaxAnnouncedBuckets) {
      fail(*job, Status(Code::kMismatch,
                        node_label(*job, sender) + " uses bucket " + std::to_string(header.bucket) +
                            ", which " + node_label(*job, job->spec.node_index) + " does not know, beside " +
                            std::to_string(kMaxAnnouncedBuckets) + " other ones"));
      return;
    }
    bucket = make_bucket(*job, header.bucket);
    ++job->announced;
  }
  grant ? on_grant(*bucket, header) : on_data(*bucket, header, payload);
}

void Core::on_data(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload) {
  Operation& operation = bucket.operation;
  if (operation.state == OperationState::kRunning && header.sequence == operation.sequence) {
    const std::string wrong = objection(bucket, header, payload.size());
    if (wrong.empty()) {
      deliver(bucket, header, payload);
    } else {
      fail(*bucket.job, Status(Code::kMismatch, operation_label(bucket, operation.sequence) + ": " + wrong));
    }
    return;
  }
  if (bucket.removed) {
    ++counters_.after_end;
    return;
  }
  const bool known = bucket.spec.reducer != nullptr;
  // A ring's left neighbour has sent all of an operation before it sends anything of the next one. What is
  // direct comes from anybody: its sender may be done while this node still waits for somebody else, and
  // nearly as many broadcasts ahead as there are nodes. Nobody ends a direct operation without this node.
  const bool direct = (header.flags & kMessageDirect) != 0;
  const bool between = operation.state != OperationState::kRunning || operation.signature.direct;
  const uint64_t ahead = header.sequence - operation.sequence;  // wraps where it is behind
  const bool next = direct ? ahead - 1 < bucket.job->spec.nodes : between && ahead == 1;
  const bool may_wait = may_be_early(header) && payload.size() <= kSmallMessageBytes &&
                        bucket.early_count + 1 < bucket.job->spec.nodes &&
                        (!known || is_small(bucket, header.operation));
  if (next && may_wait) {
    keep_early(bucket, header, payload);
    return;
  }
  fail(*bucket.job,
       Status(
           Code::kMismatch,
           "bucket " + std::to_string(bucket.id) + ": " +
               node_label(*bucket.job, bucket.job->spec.node_index) +
               (operation.state == OperationState::kRunning ? " is in operation " : " has done operation ") +
               std::to_string(operation.sequence) +
               (operation.sequence == 0 ? "" : ", " + describe(operation.signature) + ",") +
               " and granted nothing else, but " + node_label(*bucket.job, header.from_node) + " sent a " +
               std::string(message_kind_name(header.kind)) + " message of operation " +
               std::to_string(header.sequence) + ", " + describe(signature_of(header)) + ", " +
               std::to_string(payload.size()) + " bytes"));
}

// Why a message of the running operation is not the one that must come next; empty if it is.
std::string Core::objection(const Bucket& bucket, const MessageHeader& header, size_t bytes) const {
  const Job& job = *bucket.job;
  const Operation& operation = bucket.operation;
  const auto self = [&job] { return node_label(job, job.spec.node_index); };
  const auto sender = [&job, &header] { return node_label(job, header.from_node); };
  const Signature sent = signature_of(header);
  if (sent != operation.signature) {
    return self() + " expects " + describe(operation.signature) + ", " + sender() + " sent " + describe(sent);
  }
  const bool broadcast = operation.signature.operation == layout::kOpBroadcast;
  const auto place = [&header] {
    return "hop " + std::to_string(header.hop) + ", chunk " + std::to_string(header.chunk) + ", segment " +
           std::to_string(header.segment);
  };
  if (!operation.receives || operation.arrivals_left == 0) {
    return self() + " expects nothing more, " + sender() + " sent " + place();
  }
  if (header.hop < operation.first_hop || header.hop >= operation.end_hop ||
      (operation.signature.direct && header.hop != 0 && header.hop + 1 != job.spec.nodes)) {
    return self() + " expects hops from " + std::to_string(operation.first_hop) + " and below " +
           std::to_string(operation.end_hop) +
           (operation.signature.direct ? ", and of these 0 and " + std::to_string(job.spec.nodes - 1) : "") +
           ", " + sender() + " sent " + place();
  }
  const auto [kind, chunk, slot] = place_of(bucket, header);
  if (header.kind != static_cast<uint8_t>(kind) || header.chunk != chunk ||
      header.segment != operation.next_segment[slot]) {
    return self() + " expects a " + std::string(message_kind_name(static_cast<uint8_t>(kind))) +
           " message of chunk " + std::to_string(chunk) + ", segment " +
           std::to_string(operation.next_segment[slot]) + ", " + sender() + " sent a " +
           std::string(message_kind_name(header.kind)) + " message of " + place();
  }
  if (broadcast) {
    const uint32_t due =
        broadcast_segment_bytes(bucket.spec.elements * bucket.dtype_bytes, broadcast_bytes_, header.segment);
    return bytes == due ? std::string()
                        : self() + " expects " + std::to_string(due) + " bytes, " + sender() + " sent " +
                              std::to_string(bytes) + " in " + place();
  }
  const std::span<const compress::Segment> segments = reducer_of(bucket).geometry().segments(chunk);
  if (header.segment >= segments.size()) {
    return self() + " expects " + std::to_string(segments.size()) + " segments, " + sender() + " sent " +
           place();
  }
  const compress::Segment& segment = segments[header.segment];
  const uint64_t exact = segment.elements * bucket.dtype_bytes;
  if (operation.signature.operation == layout::kOpAllgather && bytes != exact) {
    return self() + " expects " + std::to_string(exact) + " bytes, " + sender() + " sent " +
           std::to_string(bytes) + " in " + place();
  }
  if (bytes > segment.max_bytes) {
    return self() + " expects at most " + std::to_string(segment.max_bytes) + " bytes, " + sender() +
           " sent " + std::to_string(bytes) + " in " + place();
  }
  if (bytes == 0 && segment.elements > 0) {  // to a reducer no bytes mean "nothing has arrived"
    return self() + " expects " + std::to_string(segment.elements) + " elements, " + sender() +
           " sent no bytes in " + place();
  }
  return {};
}

void Core::deliver(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload) {
  Operation& operation = bucket.operation;
  ++operation.next_segment[place_of(bucket, header).slot];
  --operation.arrivals_left;
  bucket.counters.received_bytes += payload.size();
  operation.arrival.header = &header;
  operation.arrival.payload = payload;
  std::exchange(operation.receiver, nullptr).resume();
}

void Core::keep_early(Bucket& bucket, const MessageHeader& header, std::span<const std::byte> payload) {
  EarlyMessage* early = early_free_.pop_front();
  if (early == nullptr) {
    early_storage_.push_back(std::make_unique<EarlyMessage>());
    early = early_storage_.back().get();
  }
  early->header = header;
  copy_bytes(early->payload, payload);
  bucket.early.push_back(early->hook);
  ++bucket.early_count;
}

void Core::on_peer_error(transport::PeerId peer, const Status& status) {
  for (const std::unique_ptr<Job>& job : jobs_) {
    for (const Link& link : job->links) {
      if (link.connected && link.peer == peer) {
        lose(*job, link.node, status);
      }
    }
  }
}

}  // namespace gradwire::engine
