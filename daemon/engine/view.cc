#include "daemon/engine/view.h"

#include <algorithm>

#include "daemon/engine/collectives.h"

namespace gradwire::engine {

namespace {

// Calls `visit(rank)` for every local rank that has not submitted the operation.
template <typename Visit>
void for_each_missing(const Bucket& bucket, uint64_t sequence, Visit visit) {
  for (size_t i = 0; i < bucket.ranks.size(); ++i) {
    if (bucket.ranks[i].last < sequence) {
      visit(bucket.job->ranks[i].spec.rank);
    }
  }
}

// The first that has not granted a direct operation.
uint32_t ungranted_node(const Bucket& bucket) {
  for (const Link& link : bucket.job->links) {
    if (sends_to(bucket, link.node) && !may_send(bucket, link.node)) {
      return link.node;
    }
  }
  return UINT32_MAX;
}

// Who takes what this node has to say; UINT32_MAX: it has said all.
uint32_t slow_taker(const Bucket& bucket) {
  for (const Link& link : bucket.job->links) {
    if (sends_to(bucket, link.node) && (link.in_flight > 0 || !link.queue.empty())) {
      return link.node;
    }
  }
  return UINT32_MAX;
}

// Whose turn it is, where everybody sends to everybody.
void view_everybody(const Bucket& bucket, OperationView* view) {
  const DirectView direct = view_direct(bucket);
  view->hops = 2;
  view->hop = direct.summed ? 1 : 0;
  if (direct.summed) {
    view->phase = layout::BucketPhase::kDistributing;
  }
  if (bucket.operation.grants_left != 0) {
    view->phase = layout::BucketPhase::kGranting;
    view->waits_for_node = ungranted_node(bucket);
  } else {
    view->waits_for_node = direct.awaited != UINT32_MAX ? direct.awaited : slow_taker(bucket);
  }
}

// Whose turn it is, in a ring. A broadcast's other nodes need nothing of their right neighbour; everybody
// else does, since its share must come round or their own must go there.
void view_waiting(const Bucket& bucket, OperationView* view) {
  const Operation& operation = bucket.operation;
  const bool passes_on = operation.signature.operation == layout::kOpBroadcast && operation.receives;
  if (operation.grants_left != 0 && !passes_on) {
    view->phase = layout::BucketPhase::kGranting;
    view->waits_for_node = bucket.job->right_node;
  } else {
    // With everything here, what this node adds has not all gone out: the link to the right is full.
    const bool awaits = operation.receives && operation.arrivals_left > 0;
    view->waits_for_node = awaits ? bucket.job->left_node : bucket.job->right_node;
  }
}

void view_running(const Core& core, const Bucket& bucket, OperationView* view) {
  const Operation& operation = bucket.operation;
  const Job& job = *bucket.job;
  const uint32_t nodes = job.spec.nodes;
  const uint8_t kind = operation.signature.operation;
  const bool distributes = kind == layout::kOpBroadcast || kind == layout::kOpAllgather;
  view->phase = distributes ? layout::BucketPhase::kDistributing : layout::BucketPhase::kReducing;
  if (nodes == 1) {
    return;
  }
  if (operation.signature.direct) {
    view_everybody(bucket, view);
    return;
  }
  if (kind == layout::kOpBroadcast) {
    // Its messages do not count hops: the root's are at hop 0 on its right neighbour.
    const uint32_t root = job.spec.rank_node[operation.signature.root];
    view->hops = nodes - 1;
    view->hop = operation.receives ? (job.spec.node_index + nodes - root) % nodes - 1 : 0;
  } else {
    const uint32_t awaited = awaited_hop(core, bucket);
    view->hops = operation.end_hop - operation.first_hop;
    view->hop = std::min(awaited - operation.first_hop, view->hops - 1);
    if (kind != layout::kOpReduceScatter && awaited + 1 >= nodes) {
      view->phase = layout::BucketPhase::kDistributing;
    }
  }
  view_waiting(bucket, view);
}

}  // namespace

uint32_t count_missing(const Bucket& bucket, uint64_t sequence) {
  uint32_t missing = 0;
  for_each_missing(bucket, sequence, [&missing](uint32_t) { ++missing; });
  return missing;
}

uint64_t sequence_of(const Bucket& bucket) {
  return bucket.gather.count > 0 ? bucket.gather.sequence : bucket.operation.sequence;
}

OperationView phase_of(const Core& core, const Bucket& bucket, uint64_t sequence) {
  const Operation& operation = bucket.operation;
  OperationView view;
  view.sequence = sequence;
  if (bucket.job->aborted) {
    return view;
  }
  if (sequence > operation.sequence) {
    if (count_missing(bucket, sequence) > 0) {
      view.phase = layout::BucketPhase::kGathering;
      return view;
    }
    if (operation.state == OperationState::kIdle && bucket.hold != nullptr) {
      view.phase = layout::BucketPhase::kHeld;
      return view;
    }
    view.sequence = operation.sequence;  // all are there: what holds it up is the one before
  } else if (sequence < operation.sequence) {
    return view;
  }
  if (operation.state == OperationState::kRunning) {
    view_running(core, bucket, &view);
  } else if (operation.state == OperationState::kDone) {
    view.phase = layout::BucketPhase::kDone;
    const bool alone = bucket.job->spec.nodes == 1;
    view.waits_for_node = alone                        ? UINT32_MAX
                          : operation.signature.direct ? slow_taker(bucket)
                                                       : bucket.job->right_node;
  }
  return view;
}

OperationView view_of(const Core& core, const Bucket& bucket, uint64_t sequence) {
  OperationView view = phase_of(core, bucket, sequence);
  if (view.phase == layout::BucketPhase::kGathering) {
    for_each_missing(bucket, sequence, [&view](uint32_t rank) { view.missing_ranks.push_back(rank); });
  }
  return view;
}

std::string describe(const OperationView& view, std::span<const std::string> node_names) {
  const auto awaited = [&] {
    const bool named = view.waits_for_node < node_names.size() && !node_names[view.waits_for_node].empty();
    const std::string index = std::to_string(view.waits_for_node);
    return named ? "node " + node_names[view.waits_for_node] + " (index " + index + ")" : "node " + index;
  };
  const bool waits = view.waits_for_node != UINT32_MAX;
  const auto going = [&](std::string what) {
    if (view.hops > 0) {
      what += ", hop " + std::to_string(view.hop + 1) + " of " + std::to_string(view.hops);
    }
    return waits ? what + ", waiting for " + awaited() : what;
  };
  switch (view.phase) {
    case layout::BucketPhase::kGathering:
      return "gathering";
    case layout::BucketPhase::kGranting:
      return "waiting for " + awaited() + " to start";
    case layout::BucketPhase::kReducing:
      return going("reducing");
    case layout::BucketPhase::kDistributing:
      return going("distributing");
    case layout::BucketPhase::kDone:
      return "complete, its last messages" + (waits ? " to " + awaited() : "") + " under way";
    case layout::BucketPhase::kHeld:
      return "waiting for a change of plan";
    case layout::BucketPhase::kIdle:
      break;
  }
  return "idle";
}

}  // namespace gradwire::engine
