// The buckets of one job on one node: what local ranks create and destroy, the memory, and the steps that the
// coordinator orders.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "config/policy.h"
#include "daemon/control/bucket_reducer.h"
#include "daemon/control/manifest.h"
#include "daemon/control/node_context.h"
#include "daemon/control/plan_document.h"
#include "daemon/engine/snapshot.h"

namespace gradwire::control {

class MemberBuckets : public std::enable_shared_from_this<MemberBuckets> {
 public:
  struct JobFacts {
    engine::JobId job = 0;
    JobIdentity identity;
    uint32_t nodes = 1;
    uint32_t node_index = 0;  // this node's place in the ring
    uint32_t max_payload = 0;
    std::vector<uint32_t> local_ranks;  // ascending
    std::vector<uint32_t> rank_node;    // of the whole world: node index
  };
  MemberBuckets(NodeContext& node, JobFacts facts, std::function<void(const Json&)> send);

  // The epoch runs: from here on there are buckets.
  void begin();
  // A local rank's requests.
  void create(uint32_t rank, const Manifest& manifest, Reply<BucketCreated> reply);
  void destroy(uint32_t rank, uint32_t bucket, const Answer& reply);

  // The coordinator's documents bucket_ok, bucket_go and bucket_failed. kCorrupt: odd.
  Status document(const std::string& type, const Json& document);

  // plan_prepare, plan_commit, plan_cancel, plan_go. kCorrupt: odd.
  Status plan_document(const std::string& type, const Json& document);

  // What codecs have taken lately corrects what this node knows of them.
  void coded(const engine::JobSnapshot& job);

  // Numbers of buckets that all local ranks have destroyed: operations of slower nodes on them may still end.
  const std::vector<uint32_t>& destroyed() const { return destroyed_; }

  // What local ranks have: number and name.
  std::vector<std::pair<uint32_t, std::string>> names() const;

  // Residuals that are neither in those nor in the store.
  ResidualStore::Absent absent() const;

  // As long as somebody has it, no bucket changes its reducer, but for changes that were agreed on before.
  std::shared_ptr<void> saving();

  // One that has residuals, which a state that is loaded comes too late for.
  std::optional<std::string> with_residuals() const;

  // Answers whatever waits with the cause; nothing happens afterwards.
  void over(const Status& cause, bool in_order);

 private:
  struct Round {                                       // of one name, before it has a number
    std::map<uint32_t, Reply<BucketCreated>> waiting;  // by rank
    Manifest manifest;
  };
  struct Change;  // of plan, under way
  struct Bucket {
    std::string name;
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<const config::CompressionPolicy>
        given;               // the coordinator's, whatever the plan makes of it
    std::string plan_codec;  // Plan::codec
    // Of layers to which even `given` gives no codec, and which came with something that they owe.
    uint64_t owed_bytes = 0;
    std::shared_ptr<Change> change;
    std::optional<std::optional<config::PolicySettings>> sole;  // sole_settings() under the plan, once asked
    uint64_t hop_ns = 0, hop_elements = 0;                      // timed until coded() looked last
    uint64_t decode_ns = 0, decode_elements = 0;
    bool mixed = false;                                // they are of two plans
    std::map<uint32_t, Reply<BucketCreated>> waiting;  // until bucket_go
    std::set<uint32_t> holders;                        // ranks that have it
    std::string codec;
    std::vector<std::shared_ptr<SharedMemory>> gradients;  // like local_ranks; released after bucket_go
    std::shared_ptr<SharedMemory> result;
    bool has_residuals = false;
    bool building = false;  // the workshop is at it
    bool in_engine = false;
    bool failed = false;
    Answer freed = nullptr;                      // who destroyed it last waits until its memory is free
    std::weak_ptr<void> used;                    // expires when the daemon has unmapped it
    std::weak_ptr<const std::string> away = {};  // its residuals, as the store knows them
  };
  struct Parts;  // what the workshop makes

  Status numbered(const Json& document);
  Status go(const Json& document);
  Status failed(const Json& document);
  void build(uint32_t id, const std::shared_ptr<Parts>& parts);
  Status charge(Parts& parts);
  std::shared_ptr<const config::CompressionPolicy> shared_policy(config::CompressionPolicy policy);
  void built(uint32_t id, Parts& parts);
  void add_to_engine(uint32_t id, Parts& parts);
  std::function<void(std::unique_ptr<compress::BucketReducer>)> on_retired(const Parts& parts);
  // As on_retired(), for a reducer of another plan.
  std::function<void(std::unique_ptr<compress::BucketReducer>)> retire_to_store(
      const std::string& bucket, const QuotaLedger::Charge& charge, const ResidualStore::Away& away);
  BucketPlace place_for(const Manifest& manifest, const config::CompressionPolicy& policy,
                        const Plan& plan) const;
  // What status shows of it: how the bucket really goes.
  static std::shared_ptr<const engine::PlanFacts> plan_facts(Plan plan, const BucketPlace& place,
                                                             const compress::BucketReducer& reducer);
  // member_buckets_plan.cc, in the order in which they happen.
  Status prepare(uint32_t id, uint64_t number, const Json& document);
  void refuse_change(uint32_t id, uint64_t number, const Status& cause);
  bool is_in_change(uint32_t id, const std::shared_ptr<Change>& change) const;
  void drop(std::shared_ptr<Change> change);
  void hold(uint32_t id, const std::shared_ptr<Change>& change);
  void commit(uint32_t id, const std::shared_ptr<Change>& change, uint64_t from);
  void take_over(uint32_t id, const std::shared_ptr<Change>& change);
  void swap(uint32_t id, const std::shared_ptr<Change>& change);
  void keep_state(std::vector<compress::LayerState>& state, const std::string& bucket);
  static std::weak_ptr<const std::string> away_of(const std::shared_ptr<Change>& change);
  const std::optional<config::PolicySettings>& sole_settings_of(Bucket& bucket) const;
  void when_nobody_saves(std::function<void(MemberBuckets&)> then);
  void nobody_saves();
  bool still_wanted(uint32_t id);
  void give_up(uint32_t id, const Status& cause);
  void remove(uint32_t id, unsigned attempt);
  void answer_when_free(const Answer& freed, const std::weak_ptr<void>& used, unsigned attempt);
  size_t count() const;

  NodeContext& node_;
  JobFacts facts_;
  std::function<void(const Json&)> send_;
  std::map<std::string, std::deque<Round>> rounds_;
  std::map<uint32_t, Bucket> buckets_;
  std::vector<uint32_t> destroyed_;
  std::weak_ptr<const config::CompressionPolicy> last_policy_;
  ResidualStore::Wanted wanted_;  // nullptr: residuals are not kept
  std::weak_ptr<void> saving_;    // what saving() gave
  std::vector<std::function<void(MemberBuckets&)>> after_saves_;
  bool begun_ = false;
  Status over_;
};

}  // namespace gradwire::control
