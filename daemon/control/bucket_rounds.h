// The coordinator's part in creating buckets: compares what the ranks say, gives out numbers, and waits until
// every node has built the bucket before anybody may use it.
//
// A name may be created again by ranks that destroyed it while slower ranks still create the first one: each
// creation is a round, and a rank goes into the oldest round of the name that it has not been in.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "config/policy.h"
#include "daemon/control/documents.h"
#include "daemon/control/manifest.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

class BucketRounds {
 public:
  struct Hooks {
    std::function<void(uint32_t node, const Json&)> send;             // node: index in the epoch
    std::function<std::string(uint32_t rank)> place;                  // "rank 3 (node b)"
    std::function<uint32_t(uint32_t rank)> node;                      // of a rank
    std::function<std::string(const std::vector<uint32_t>&)> places;  // of missing ranks
    // Of a bucket that all ranks have created: answers with policy and plan, now or later.
    std::function<void(uint32_t bucket, const Manifest&,
                       const std::function<void(const Json& policy, const Json& plan)>& answer)>
        plan;
  };
  BucketRounds(Scheduler& scheduler, Nanoseconds timeout, uint32_t world, uint32_t nodes, Hooks hooks);

  // `rank` belongs to the node that said so (checked by the caller).
  void created(uint32_t rank, const Manifest& manifest);
  void ready(uint32_t node, uint32_t bucket);
  void failed(uint32_t bucket, const Status& cause);
  // It can create nothing any more.
  void rank_left(uint32_t rank);

  // "bucket 'b0' (1)", of those that got their number long ago "bucket 1".
  std::string label(uint32_t bucket) const;

 private:
  struct Round {
    explicit Round(Scheduler& scheduler) : deadline(scheduler) {}
    Manifest first;
    uint32_t first_rank = 0;
    std::set<uint32_t> arrived;
    uint32_t bucket = 0;       // given when all have arrived
    std::set<uint32_t> built;  // nodes
    Status failure;            // then `arrived` are those who have been told
    Timer deadline;
  };
  using RoundPtr = std::shared_ptr<Round>;

  RoundPtr round_for(const std::string& name, uint32_t rank);
  void expire(const RoundPtr& round);
  void fail(const RoundPtr& round, const Status& cause);
  void tell_failure(const Round& round, const std::set<uint32_t>& ranks);
  void all_arrived(const RoundPtr& round);
  void planned(uint32_t bucket, const Json& policy, const Json& plan);
  void forget_if_told(const RoundPtr& round);
  std::vector<uint32_t> missing(const Round& round) const;

  Scheduler& scheduler_;
  Nanoseconds timeout_;
  uint32_t world_;
  uint32_t nodes_;
  Hooks hooks_;
  uint32_t last_bucket_ = 0;
  std::map<std::string, std::deque<RoundPtr>> forming_;  // by name, until all have arrived and been told
  std::map<uint32_t, RoundPtr> building_;                // by number, until every node has built it
  std::set<uint32_t> left_;
  std::map<uint32_t, std::string> labels_;  // of the latest buckets
};

}  // namespace gradwire::control
