// Shares that go straight to the owner of their chunk: two hops however many nodes there are.
#include <algorithm>
#include <utility>

#include "daemon/engine/collectives.h"
#include "daemon/engine/steps.h"

namespace gradwire::engine {

namespace {

using compress::Segment;

// The shares of a segment that its owner needs: one of each other node.
uint32_t shares(const Bucket& bucket) {
  return bucket.job->spec.nodes - 1;
}

// How far to the left of this node another one is: 1 to P-1.
uint32_t distance_of(const Bucket& bucket, uint32_t node) {
  const JobSpec& job = bucket.job->spec;
  return (job.node_index + job.nodes - node) % job.nodes;
}

SendBuffer*& held(Bucket& bucket, uint32_t segment, uint32_t distance) {
  return bucket.direct->held[size_t{segment} * bucket.job->spec.nodes + distance];
}

// The owner's finished sum, to everybody else. `buffer` goes to one of them.
bool send_sum(Core& core, Bucket& bucket, SendBuffer* buffer, Core::Outgoing what) {
  Job& job = *bucket.job;
  for (uint32_t step = 1; step < job.spec.nodes; ++step) {
    what.way = &job.links[(job.spec.node_index + step) % job.spec.nodes];
    SendBuffer* copy = buffer;
    if (step + 1 < job.spec.nodes) {
      copy = core.acquire(bucket);
      if (copy == nullptr) {
        core.release(buffer);
        return false;
      }
      copy_bytes(copy->data, {buffer->data, what.bytes});
    }
    core.send(bucket, copy, what);
  }
  return true;
}

// The last share of a segment: with this node's own the sum is complete.
bool finish_sum(Core& core, Bucket& bucket, const Segment& segment, std::span<const std::byte> share) {
  bool not_finite = bucket.direct->not_finite[segment.index] != 0;
  uint32_t bytes = 0;
  SendBuffer* const buffer = encode(core, bucket, segment, share, &bytes, &not_finite);
  if (buffer == nullptr) {
    return false;
  }
  if (!finish(core, bucket, segment, buffer, &bytes, not_finite)) {
    core.release(buffer);
    return false;
  }
  const uint32_t hop = bucket.job->spec.nodes - 1;
  return send_sum(core, bucket, buffer,
                  outgoing(bucket, MessageKind::kGather, hop, segment, bytes, not_finite));
}

// The share whose turn it is.
bool sum_share(Core& core, Bucket& bucket, const Segment& segment, std::span<const std::byte> share,
               uint32_t flags) {
  DirectState& state = *bucket.direct;
  state.not_finite[segment.index] |= (flags & kMessageNotFinite) != 0 ? 1 : 0;
  if (++state.summed[segment.index] == shares(bucket)) {
    return finish_sum(core, bucket, segment, share);
  }
  core.count_segment();
  const Status status = reducer_of(bucket).collect(segment, share);
  if (!status.ok()) {
    core.fail_operation(bucket, status);
  }
  return status.ok();
}

bool hold_share(Core& core, Bucket& bucket, const Arrival& arrival, uint32_t distance) {
  SendBuffer* const buffer = core.acquire(bucket);
  if (buffer == nullptr) {
    return false;
  }
  buffer->header = *arrival.header;
  copy_bytes(buffer->data, arrival.payload);
  held(bucket, arrival.header->segment, distance) = buffer;
  return true;
}

// Another node's share of a segment of this node's chunk, and those that waited for it.
bool take_share(Core& core, Bucket& bucket, const Arrival& arrival) {
  const MessageHeader& header = *arrival.header;
  const Segment& segment = segments(bucket, header.chunk)[header.segment];
  const uint32_t distance = distance_of(bucket, header.from_node);
  const uint32_t& summed = bucket.direct->summed[segment.index];
  if (distance != summed + 1) {
    return hold_share(core, bucket, arrival, distance);
  }
  bool ok = sum_share(core, bucket, segment, arrival.payload, header.flags);
  while (ok && summed < shares(bucket)) {
    SendBuffer* const next = std::exchange(held(bucket, segment.index, summed + 1), nullptr);
    if (next == nullptr) {
      break;
    }
    ok = sum_share(core, bucket, segment, {next->data, next->header.payload_bytes}, next->header.flags);
    core.release(next);
  }
  return ok;
}

bool take_sum(Core& core, Bucket& bucket, const Arrival& arrival) {
  const MessageHeader& header = *arrival.header;
  core.count_segment();
  bucket.operation.not_finite |= (header.flags & kMessageNotFinite) != 0;
  return decode(core, bucket, segments(bucket, header.chunk)[header.segment], arrival.payload);
}

}  // namespace

Task direct_inject(Core& core, Bucket& bucket) {
  Job& job = *bucket.job;
  const uint32_t nodes = job.spec.nodes;
  for (uint32_t step = 1; step < nodes; ++step) {
    const uint32_t owner = (job.spec.node_index + step) % nodes;
    bucket.operation.way = &job.links[owner];
    for (const Segment& segment : segments(bucket, owned_chunk(owner, nodes))) {
      co_await Room(core, bucket);
      if (!send_share(core, bucket, segment)) {
        co_return;
      }
    }
  }
  core.end_part(bucket);
}

Task direct_relay(Core& core, Bucket& bucket) {
  DirectState& state = *bucket.direct;
  std::fill(state.summed.begin(), state.summed.end(), 0);
  std::fill(state.not_finite.begin(), state.not_finite.end(), 0);
  while (bucket.operation.arrivals_left > 0) {
    const Arrival& arrival = co_await Receive(bucket);
    const bool share = arrival.header->hop == 0;
    if (!(share ? take_share(core, bucket, arrival) : take_sum(core, bucket, arrival))) {
      co_return;
    }
  }
  core.end_part(bucket);
}

uint64_t direct_arrivals(const Bucket& bucket) {
  const JobSpec& job = bucket.job->spec;
  uint64_t arrivals = 0;
  for (uint32_t node = 0; node < job.nodes; ++node) {
    const uint64_t sum = segments(bucket, owned_chunk(node, job.nodes)).size();
    arrivals += node == job.node_index ? sum * shares(bucket) : sum;
  }
  return arrivals;
}

DirectView view_direct(const Bucket& bucket) {
  const JobSpec& job = bucket.job->spec;
  const std::vector<uint32_t>& next = bucket.operation.next_segment;
  const size_t own = segments(bucket, owned_chunk(job.node_index, job.nodes)).size();
  for (uint32_t distance = 1; distance < job.nodes; ++distance) {
    const uint32_t node = (job.node_index + job.nodes - distance) % job.nodes;
    if (next[node] < own) {
      return {false, node};
    }
  }
  for (uint32_t node = 0; node < job.nodes; ++node) {
    if (node != job.node_index &&
        next[job.nodes + node] < segments(bucket, owned_chunk(node, job.nodes)).size()) {
      return {true, node};
    }
  }
  return {true, UINT32_MAX};
}

void drop_held(Core& core, Bucket& bucket) {
  if (bucket.direct == nullptr) {
    return;
  }
  for (SendBuffer*& buffer : bucket.direct->held) {
    if (buffer != nullptr) {
      core.release(std::exchange(buffer, nullptr));
    }
  }
}

}  // namespace gradwire::engine
