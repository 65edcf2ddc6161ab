// A second job on the engines of a Cluster: one rank a node, exact buckets of 32-bit integers whose sums the
// test can tell.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tests/sim/sim_cluster.h"

namespace gradwire::sim {

class OtherJob {
 public:
  // On the first `nodes` nodes of the cluster, all of them by default.
  explicit OtherJob(Cluster& cluster, engine::JobId id = 2, uint32_t nodes = 0);
  ~OtherJob();  // removes it
  OtherJob(const OtherJob&) = delete;
  OtherJob& operator=(const OtherJob&) = delete;

  void add_bucket(uint32_t bucket, uint64_t elements);
  // Fills every rank's gradients for this step and submits the next operation of the bucket everywhere.
  void submit_all(uint32_t bucket);
  // True once every rank's latest operation of the bucket is complete; the results are checked then.
  bool complete(uint32_t bucket);
  // Runs `steps` operations one after the other, calling `meanwhile` whenever time has moved on. Returns the
  // virtual time that they took; 0 if they did not complete.
  uint64_t run(
      uint32_t bucket, uint32_t steps, const std::function<void()>& meanwhile = [] {});

  engine::JobId id() const { return id_; }
  Rank& rank(uint32_t index) { return ranks_[index]; }
  engine::JobSnapshot snapshot(uint32_t node);
  const std::vector<Status>& failures(uint32_t node) { return cluster_.node(node).other_failures[id_]; }

 private:
  Cluster& cluster_;
  const engine::JobId id_;
  const uint32_t nodes_;
  std::vector<Rank> ranks_;
  std::map<uint32_t, std::vector<std::shared_ptr<Region>>> results_;
};

}  // namespace gradwire::sim
