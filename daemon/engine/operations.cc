// The life of an operation: start, the end of its coroutines, completion, retirement, cancellation.
#include <algorithm>
#include <bit>

#include "client/include/gradwire/gradwire.h"
#include "daemon/engine/collectives.h"
#include "daemon/engine/core.h"
#include "daemon/engine/shards.h"

namespace gradwire::engine {

namespace {

bool reduces(uint8_t operation) {
  return operation != layout::kOpBroadcast && operation != layout::kOpAllgather;
}

void count_for_plan(Bucket& bucket) {
  BucketCounters& counters = bucket.counters;
  if (bucket.spec.plan != nullptr && bucket.spec.plan->exact_ns > 0) {
    ++counters.plan_operations;
    counters.plan_total_ns += counters.last_ns;
    counters.saved_ns +=
        static_cast<int64_t>(bucket.spec.plan->exact_ns) - static_cast<int64_t>(counters.last_ns);
  }
}

}  // namespace

// All local ranks have submitted, and the bucket's previous operation is retired.
void Core::start(Bucket& bucket) {
  Job& job = *bucket.job;
  Operation& operation = bucket.operation;
  operation.sequence = bucket.gather.sequence;
  operation.signature = bucket.gather.signature;
  operation.first_ns = bucket.gather.first_ns;
  operation.start_ns = clock_.now_ns();
  operation.not_finite = false;
  operation.burst = 0;
  bucket.gather.count = 0;
  bucket.counters.gather_total_ns += operation.start_ns - operation.first_ns;
  operation.state = OperationState::kRunning;
  ++job.running;
  ++running_;

  if (!job.lost.ok() && job.spec.nodes > 1) {
    fail(job, job.lost);
    return;
  }
  if (job.spec.nodes > 1) {
    const Status status = connect(job, operation.signature.direct);
    if (!status.ok()) {
      fail(job, status);
      return;
    }
  }
  if (reduces(operation.signature.operation)) {
    compress::OperationSettings settings;
    settings.scale = std::bit_cast<double>(operation.signature.scale_bits);
    settings.op = static_cast<compress::ReduceOp>(operation.signature.reduce_op);
    settings.ranks = static_cast<uint32_t>(job.spec.rank_node.size());
    settings.flush = operation.signature.flush;
    const Status status = reducer_of(bucket).begin(settings);
    if (!status.ok()) {
      fail_operation(bucket, status);
      return;
    }
    operation.begun = true;
  }
  expect_arrivals(bucket);
  expect_grants(bucket);
  if (!take_stored_grants(bucket)) {
    return;
  }
  launch(bucket);
  take_early(bucket);
}

// What came before the operation has started; of later ones it goes on waiting.
void Core::take_early(Bucket& bucket) {
  List<EarlyMessage> waiting;
  waiting.append(bucket.early);
  while (EarlyMessage* const early = waiting.pop_front()) {
    if (bucket.job->failed || early->header.sequence != bucket.operation.sequence) {
      bucket.early.push_back(early->hook);
      continue;
    }
    --bucket.early_count;
    on_data(bucket, early->header, {early->payload, early->header.payload_bytes});
    early_free_.push_back(early->hook);
  }
}

// What the operation sends and receives on this node.
void Core::expect_arrivals(Bucket& bucket) {
  const Job& job = *bucket.job;
  Operation& operation = bucket.operation;
  const uint32_t nodes = job.spec.nodes;
  const uint32_t self = job.spec.node_index;
  operation.receives = nodes > 1;
  operation.arrivals_left = 0;
  operation.first_hop = operation.end_hop = 0;
  std::fill(operation.next_segment.begin(), operation.next_segment.end(), 0);
  const uint8_t kind = operation.signature.operation;
  if (kind == layout::kOpBroadcast) {
    const uint32_t root_node = job.spec.rank_node[operation.signature.root];
    operation.receives = operation.receives && self != root_node;
    operation.end_hop = operation.receives ? 1 : 0;
  } else if (nodes > 1) {
    operation.first_hop = kind == layout::kOpAllgather ? nodes - 1 : 0;
    operation.end_hop = kind == layout::kOpReduceScatter ? nodes - 1 : 2 * nodes - 2;
  }
  if (operation.signature.direct) {
    operation.arrivals_left = direct_arrivals(bucket);
  } else {
    for (uint32_t hop = operation.first_hop; hop < operation.end_hop; ++hop) {
      operation.arrivals_left += arriving_segments(*this, bucket, hop);
    }
  }
  operation.way = &bucket.job->right();

  MessageHeader& header = operation.header;
  header = MessageHeader{};
  header.key = job.spec.key;
  header.magic = kMessageMagic;
  header.operation = operation.signature.operation;
  header.reduce_op = operation.signature.reduce_op;
  header.dtype = operation.signature.dtype;
  header.sequence = operation.sequence;
  header.scale_bits = operation.signature.scale_bits;
  header.elements = operation.signature.elements;
  header.layout = operation.signature.layout;
  header.bucket = bucket.id;
  header.root = operation.signature.root;
  header.flags =
      (operation.signature.flush ? kMessageFlush : 0) | (operation.signature.direct ? kMessageDirect : 0);
  header.from_node = self;
}

void Core::launch(Bucket& bucket) {
  Operation& operation = bucket.operation;
  const bool alone = bucket.job->spec.nodes == 1;
  const bool broadcast = operation.signature.operation == layout::kOpBroadcast;
  const bool allgather = operation.signature.operation == layout::kOpAllgather;
  if (alone) {
    operation.parts = 1;
    operation.inject = broadcast   ? broadcast_alone(*this, bucket)
                       : allgather ? allgather_alone(*this, bucket)
                                   : reduce_alone(*this, bucket);
    return;
  }
  if (operation.needs_grant) {
    send_grants(bucket);
  }
  if (broadcast) {
    operation.parts = 1;
    (operation.receives ? operation.relay : operation.inject) =
        operation.receives ? broadcast_relay(*this, bucket) : broadcast_root(*this, bucket);
    return;
  }
  operation.parts = 2;
  if (operation.signature.direct) {
    operation.relay = direct_relay(*this, bucket);
    operation.inject = direct_inject(*this, bucket);
    return;
  }
  operation.relay = allgather ? allgather_relay(*this, bucket) : ring_relay(*this, bucket);
  operation.inject = allgather ? allgather_inject(*this, bucket) : ring_inject(*this, bucket);
}

void Core::end_part(Bucket& bucket) {
  if (--bucket.operation.parts == 0 && !bucket.job->failed) {
    complete(bucket);
  }
}

// Everything has arrived and is decoded: the verdict, then the ranks. Runs inside the last coroutine, which
// therefore lives until retire().
void Core::complete(Bucket& bucket) {
  Job& job = *bucket.job;
  Operation& operation = bucket.operation;
  uint32_t flags = 0;
  if (operation.begun) {
    compress::BucketReducer& reducer = reducer_of(bucket);
    if (operation.not_finite) {
      // A node that reduced the shards of its own ranks only knows no others' verdict.
      if (operation.signature.operation == layout::kOpReduceScatter) {
        poison_shards(bucket);
      } else {
        reducer.poison(bucket.spec.result, 0, bucket.spec.elements);
      }
      reducer.abandon();
      flags = layout::kCompletionNotFinite;
      ++bucket.counters.not_finite;
    } else {
      reducer.commit();
    }
    operation.begun = false;
  }
  operation.state = OperationState::kDone;
  --job.running;
  --running_;
  if (bucket.own) {
    probe_ended(bucket);
    retire_if_over(bucket);
    return;
  }
  const uint64_t now = clock_.now_ns();
  ++bucket.counters.operations;
  bucket.counters.last_ns = now - operation.start_ns;
  bucket.counters.total_ns += bucket.counters.last_ns;
  if (operation.signature.operation == layout::kOpAllreduce) {
    ++job.traffic.operations;
    count_for_plan(bucket);
  }
  stop_clocks(bucket);
  complete_ranks(bucket, operation.sequence, GW_OK, flags);
  sample_result(bucket, flags);
  if (bucket.warned) {
    bucket.warned = false;
    listener_.on_progress_after_stall(job.spec.id, bucket.id, operation.sequence);
  }
  retire_if_over(bucket);
}

// After the ranks were told, who need not wait for it: nobody else writes to the region, and this thread does
// not before the next operation starts. A reduce_scatter's result is each node's own.
void Core::sample_result(Bucket& bucket, uint32_t flags) {
  Job& job = *bucket.job;
  const Operation& operation = bucket.operation;
  const size_t bytes = bucket.spec.elements * bucket.dtype_bytes;
  if (job.spec.nodes == 1 || bytes == 0 || operation.signature.operation == layout::kOpReduceScatter) {
    return;
  }
  const uint64_t lot = operation_lot(job.spec.key, bucket.id, operation.sequence);
  if (job.samples.wants(lot)) {
    const std::span<const std::byte> result(static_cast<const std::byte*>(bucket.spec.result), bytes);
    job.samples.keep(lot, {bucket.id, operation.sequence, hash_result(result, lot, flags)});
  }
}

// Nothing of the operation is under way any more, neither from here nor to here.
void Core::retire_if_over(Bucket& bucket) {
  Operation& operation = bucket.operation;
  if (operation.pending_sends == 0 &&
      (operation.state == OperationState::kDone ? operation.grants_left == 0 : bucket.removed)) {
    bucket.job->retired.push_back(operation.retire_hook);
  }
}

void Core::complete_ranks(Bucket& bucket, uint64_t sequence, int32_t status, uint32_t flags) {
  for (size_t i = 0; i < bucket.ranks.size(); ++i) {
    RankSlot& slot = bucket.ranks[i];
    if (!slot.pending) {
      continue;
    }
    slot.pending = false;
    layout::Completion completion{};
    completion.user_data = slot.user_data;
    completion.sequence = sequence;
    completion.bucket = bucket.id;
    completion.status = status;
    completion.flags = flags;
    push_completion(bucket.job->ranks[i], completion);
  }
}

// From poll() only: the operation and its sends are over.
void Core::retire(Bucket& bucket) {
  Operation& operation = bucket.operation;
  operation.inject.destroy();
  operation.relay.destroy();
  operation.state = OperationState::kIdle;
  if (bucket.removed) {
    free_bucket(bucket);
  } else if (bucket.own) {
    go_on_probing(bucket);
  } else {
    begin_if_ready(bucket);
  }
}

// The epoch has ended: whatever the operation does stops here. Sends that the transport holds go on.
void Core::cancel(Bucket& bucket) {
  Operation& operation = bucket.operation;
  operation.room_hook.unlink();
  operation.retire_hook.unlink();
  operation.receiver = operation.injector = nullptr;
  operation.inject.destroy();
  operation.relay.destroy();
  if (operation.begun) {
    reducer_of(bucket).abandon();
    operation.begun = false;
  }
  if (operation.state == OperationState::kRunning) {
    --bucket.job->running;
    --running_;
  }
  operation.state = OperationState::kIdle;
  drop_sends(operation.ungranted);
  operation.ungranted_count = 0;
  drop_held(*this, bucket);
  bucket.gather.count = 0;
  bucket.grants.clear();
  stop_clocks(bucket);
  drop_early(bucket);
}

void Core::drop_early(Bucket& bucket) {
  early_free_.append(bucket.early);
  bucket.early_count = 0;
}

void Core::fail_operation(Bucket& bucket, const Status& cause) {
  fail(*bucket.job, cause.with_context(operation_label(bucket, bucket.operation.sequence)));
}

}  // namespace gradwire::engine
