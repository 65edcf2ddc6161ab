#include "daemon/control/counters_records.h"

namespace gradwire::control {

void fill(const JobFacts& job, const engine::JobSnapshot& snapshot, layout::JobRecord* record) {
  record->state = static_cast<uint32_t>(job.state);
  record->id = job.id;
  put(record->name, job.identity.name);
  put(record->run_id, job.identity.run_id);
  record->uid = job.identity.uid;
  record->world = job.world;
  record->nodes = job.nodes;
  record->node_index = job.node_index;
  record->epoch = job.epoch;
  record->operations = snapshot.operations;
  record->raw_bytes = snapshot.raw_bytes;
  record->payload_bytes = snapshot.payload_bytes;
  record->header_bytes = snapshot.header_bytes;
  put(record->cause, job.cause);
  record->ended_ns = job.ended_ns;
  put(record->stall, job.ended_ns == 0 ? job.stall : std::string());
}

void fill(uint64_t job, const JobFacts::Rank& rank, const engine::RankSnapshot* seen,
          layout::RankRecord* record) {
  record->state = static_cast<uint32_t>(rank.state);
  record->id = 1 + uint64_t{rank.rank};
  record->job = job;
  record->rank = rank.rank;
  record->pid = rank.pid;
  if (seen != nullptr) {
    record->submissions = seen->submissions;
    record->late_total_ns = seen->late_total_ns;
    record->late_max_ns = seen->late_max_ns;
    record->late_count = seen->late_count;
  }
}

void fill(uint64_t job, const engine::BucketSnapshot& bucket, layout::BucketRecord* record) {
  record->phase = static_cast<uint32_t>(bucket.phase);
  record->id = 1 + uint64_t{bucket.bucket};
  record->job = job;
  record->bucket = bucket.bucket;
  record->dtype = bucket.dtype;
  if (bucket.name != nullptr) {
    put(record->name, *bucket.name);
  }
  put(record->codec, bucket.codec);
  record->elements = bucket.elements;
  record->sequence = bucket.sequence;
  record->operations = bucket.operations;
  record->not_finite = bucket.not_finite;
  record->raw_bytes = bucket.raw_bytes;
  record->payload_bytes = bucket.payload_bytes;
  record->header_bytes = bucket.header_bytes;
  record->received_bytes = bucket.received_bytes;
  record->residual_bytes = bucket.residual_bytes;
  record->density = bucket.density;
  record->residual_norm = bucket.residual_norm;
  record->warm_stage = bucket.warm_stage;
  record->missing_ranks = bucket.missing_ranks;
  record->last_ns = bucket.last_ns;
  record->total_ns = bucket.total_ns;
  record->gather_total_ns = bucket.gather_total_ns;
  record->hop = bucket.hop;
  record->hops = bucket.hops;
  record->waits_for_node = bucket.waits_for_node;
  record->operation = bucket.operation;
  const engine::PlanFacts facts = bucket.plan == nullptr ? engine::PlanFacts{} : *bucket.plan;
  put(record->plan, facts.text);
  record->expected_ns = facts.expected_ns;
  record->exact_ns = facts.exact_ns;
  record->plan_operations = bucket.plan_operations;
  record->plan_total_ns = bucket.plan_total_ns;
  record->saved_ns = bucket.saved_ns;
  record->plan_changes = bucket.plan_changes;
}

void fill(uint64_t job, uint64_t id, const JobFacts::Peer& peer, const std::string& path,
          layout::PeerRecord* record) {
  record->state = static_cast<uint32_t>(peer.state);
  record->id = id;
  record->job = job;
  put(record->node, peer.node);
  put(record->ranks, peer.ranks);
  put(record->address, peer.address);
  put(record->path, path);
  record->heartbeat_ns = peer.heartbeat_ns;
  record->node_index = peer.node_index;
}

}  // namespace gradwire::control
