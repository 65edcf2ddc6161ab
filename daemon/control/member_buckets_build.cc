// A bucket that the coordinator has numbered gets its memory, its reducers and what earlier ones left behind.
#include <new>
#include <utility>

#include "config/policy_json.h"
#include "daemon/control/bucket_reducer.h"
#include "daemon/control/member_buckets.h"
#include "daemon/control/plan_candidates.h"
#include "daemon/control/plan_document.h"

namespace gradwire::control {

struct MemberBuckets::Parts {
  std::shared_ptr<const Manifest> manifest;
  config::CompressionPolicy policy;  // as the plan has it
  BucketPlace place;
  Plan plan;
  uint64_t region = 0, residual = 0;  // bytes
  size_t ranks = 0;                   // local

  Status status;
  std::shared_ptr<QuotaLedger> quotas;
  uint32_t uid = 0;
  std::vector<QuotaLedger::Charge> region_charges;  // one for each region
  QuotaLedger::Charge residual_charge;
  std::vector<compress::LayerState> state;  // of buckets before this one
  ResidualStore::Away away;                 // while the residuals are in any of these
  std::vector<std::shared_ptr<SharedMemory>> gradients;
  std::shared_ptr<SharedMemory> result;
  std::unique_ptr<compress::BucketReducer> reducer, shards;

  // In the workshop.
  Status make_memory();
  Status make_reducers(const std::vector<uint32_t>& rank_node);
  // On the control thread, where nobody waits for the bucket any more.
  void give_back(ResidualStore& store, const JobIdentity& job, const ResidualStore::Wanted& wanted);
};

Status MemberBuckets::Parts::make_memory() {
  for (size_t i = 0; i <= ranks; ++i) {
    const bool gradient = i < ranks;
    auto memory = SharedMemory::create(manifest->name, region, gradient ? Access::kBoth : Access::kReadOnly);
    GRADWIRE_RETURN_IF_ERROR(memory.status());
    // From here on the charge lasts as long as anybody has the memory.
    (*memory)->keep(
        quotas->until_gone((*memory)->fd()->get(), uid, region, std::exchange(region_charges[i], nullptr)));
    if (gradient) {
      gradients.push_back(std::move(*memory));
    } else {
      result = std::move(*memory);
    }
  }
  return ok_status();
}

Status MemberBuckets::Parts::make_reducers(const std::vector<uint32_t>& rank_node) {
  try {
    auto sharded = make_shards(*manifest, place.nodes, place.max_payload, rank_node);
    GRADWIRE_RETURN_IF_ERROR(sharded.status().with_context(bucket_text(manifest->name)));
    auto made = make_reducer(*manifest, place, policy);
    GRADWIRE_RETURN_IF_ERROR(made.status().with_context(bucket_text(manifest->name)));
    if (!state.empty() && (*made)->restore_state(state) > 0) {
      state.clear();
    }
    shards = std::move(*sharded);
    reducer = std::move(*made);
    return ok_status();
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted,
                  "no memory for the residuals of " + bucket_text(manifest->name) + "; use smaller buckets");
  }
}

void MemberBuckets::Parts::give_back(ResidualStore& store, const JobIdentity& job,
                                     const ResidualStore::Wanted& wanted) {
  if (wanted && *wanted) {
    store.keep(job, manifest->name, std::move(state));
    store.retire(job, manifest->name, std::move(reducer), wanted, std::exchange(residual_charge, nullptr),
                 std::move(away));
  }
}

Status MemberBuckets::numbered(const Json& document) {
  Fields fields(document);
  const std::string name = fields.text("name", 1, kMaxBucketName);
  const auto id = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
  const Json* policy_json = fields.object("policy");
  const Plan plan = read_plan(fields, facts_.max_payload);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("bucket_ok"));
  Result<config::CompressionPolicy> policy = config::policy_from_json(*policy_json);
  GRADWIRE_RETURN_IF_ERROR(policy.status().with_context("bucket_ok, policy"));
  const auto found = rounds_.find(name);
  if (found == rounds_.end() || found->second.front().waiting.size() != facts_.local_ranks.size() ||
      buckets_.contains(id)) {
    return Status(Code::kCorrupt, "bucket_ok: " + bucket_text(name) + " is not waiting here for number " +
                                      std::to_string(id));
  }
  Round round = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) {
    rounds_.erase(found);
  }
  Bucket& bucket = buckets_[id];
  bucket.name = name;
  bucket.waiting = std::move(round.waiting);
  bucket.building = true;
  const auto parts = std::make_shared<Parts>();
  parts->manifest = std::make_shared<const Manifest>(std::move(round.manifest));
  parts->policy = planned_policy(*policy, plan.codec);
  parts->place = place_for(*parts->manifest, parts->policy, plan);
  parts->plan = plan;
  bucket.manifest = parts->manifest;
  bucket.given = shared_policy(std::move(*policy));
  bucket.plan_codec = plan.codec;
  // What earlier buckets leave behind is in the workshop, if it is on its way.
  node_.workshop.run([] {},
                     [parts, id, weak = weak_from_this()] {
                       if (const auto self = weak.lock(); self && self->still_wanted(id)) {
                         self->build(id, parts);
                       }
                     });
  return ok_status();
}

// Most buckets have the policy of the one before.
std::shared_ptr<const config::CompressionPolicy> MemberBuckets::shared_policy(
    config::CompressionPolicy policy) {
  auto last = last_policy_.lock();
  if (!last || *last != policy) {
    last = std::make_shared<const config::CompressionPolicy>(std::move(policy));
    last_policy_ = last;
  }
  return last;
}

// Whether a bucket that is being built still is what the job wants.
bool MemberBuckets::still_wanted(uint32_t id) {
  const auto found = buckets_.find(id);
  if (!over_.ok() || found == buckets_.end()) {
    return false;
  }
  if (found->second.failed) {
    buckets_.erase(found);
    return false;
  }
  return true;
}

Status MemberBuckets::charge(Parts& parts) {
  std::vector<uint64_t> amounts(parts.ranks + 1, parts.region);
  amounts.push_back(parts.residual);
  const std::string region = std::to_string(parts.region);
  const std::string formula = bucket_text(parts.manifest->name) + ": " + std::to_string(parts.ranks) +
                              " gradient regions x " + region + " + 1 result x " + region + " + residuals " +
                              std::to_string(parts.residual);
  auto charges = node_.residuals ? node_.residuals->charge_bytes(facts_.identity.uid, amounts, formula)
                                 : node_.quotas->charge_bytes(facts_.identity.uid, amounts, formula);
  GRADWIRE_RETURN_IF_ERROR(charges.status());
  parts.residual_charge = std::move(charges->back());
  charges->pop_back();
  parts.region_charges = std::move(*charges);
  parts.quotas = node_.quotas;
  parts.uid = facts_.identity.uid;
  return ok_status();
}

void MemberBuckets::build(uint32_t id, const std::shared_ptr<Parts>& parts) {
  const Manifest& manifest = *parts->manifest;
  parts->region = page_rounded(manifest_elements(manifest) *
                               compress::dtype_size(static_cast<compress::Dtype>(manifest.dtype)));
  parts->residual = residual_bytes(manifest, parts->place, parts->policy);
  parts->ranks = facts_.local_ranks.size();
  Bucket& bucket = buckets_.at(id);
  bucket.has_residuals = has_residuals(manifest, *bucket.given);
  if (wanted_ && is_compressible(manifest)) {
    parts->away = node_.residuals->away(facts_.identity, manifest.name);
    bucket.away = parts->away;
    // Before the charge: what is taken over must not give way to its own heir.
    parts->state = node_.residuals->take(facts_.identity, manifest.name, manifest.layers);
    for (const compress::LayerState& layer : parts->state) {
      const uint64_t bytes = layer.residual.kept ? layer.elements * sizeof(float) : 0;
      bucket.has_residuals |= layer.residual.kept || layer.velocity.kept;
      parts->residual += is_exact(parts->policy, layer.name) ? bytes : 0;
      bucket.owed_bytes += is_exact(*bucket.given, layer.name) ? bytes : 0;
    }
  }
  if (const Status charged = charge(*parts); !charged.ok()) {
    parts->status = charged;
    built(id, *parts);
    return;
  }
  const auto work = [parts, rank_node = facts_.rank_node] {
    parts->status = parts->make_memory();
    if (parts->status.ok()) {
      parts->status = parts->make_reducers(rank_node);
    }
  };
  node_.workshop.run(work, [parts, id, weak = weak_from_this(), store = std::weak_ptr(node_.residuals),
                            job = facts_.identity, wanted = wanted_] {
    if (const auto self = weak.lock()) {
      self->built(id, *parts);
    } else if (const auto kept = store.lock()) {
      parts->give_back(*kept, job, wanted);  // for the job's next epoch
    }
  });
}

void MemberBuckets::built(uint32_t id, Parts& parts) {
  if (wanted_ && *wanted_) {
    node_.residuals->keep(facts_.identity, parts.manifest->name, std::move(parts.state));
  }
  if (!still_wanted(id)) {
    if (parts.reducer) {
      on_retired(parts)(std::move(parts.reducer));
    }
    return;
  }
  buckets_.at(id).building = false;
  if (!parts.status.ok()) {
    give_up(id, parts.status);
    return;
  }
  add_to_engine(id, parts);
}

// Brings the residuals of a bucket that is gone to the store; called on any thread.
std::function<void(std::unique_ptr<compress::BucketReducer>)> MemberBuckets::on_retired(const Parts& parts) {
  return retire_to_store(parts.manifest->name, parts.residual_charge, parts.away);
}

std::function<void(std::unique_ptr<compress::BucketReducer>)> MemberBuckets::retire_to_store(
    const std::string& name, const QuotaLedger::Charge& residual_charge, const ResidualStore::Away& away) {
  // The engine may keep the function longer than the bucket.
  struct Held {
    QuotaLedger::Charge charge;
    ResidualStore::Away away;
  };
  const auto held = std::make_shared<Held>(Held{residual_charge, nullptr});
  if (!wanted_ || !residual_charge) {
    return [held](std::unique_ptr<compress::BucketReducer>) { held->charge.reset(); };
  }
  held->away = away;
  return [&scheduler = node_.scheduler, weak = std::weak_ptr(node_.residuals), job = facts_.identity,
          bucket = name, wanted = wanted_, held](std::unique_ptr<compress::BucketReducer> reducer) {
    // A posted function can be copied, a unique_ptr cannot.
    const auto shared = std::make_shared<std::unique_ptr<compress::BucketReducer>>(std::move(reducer));
    scheduler.post([weak, job, bucket, wanted, had = std::exchange(*held, {}), shared] {
      if (const auto store = weak.lock()) {
        store->retire(job, bucket, std::move(*shared), wanted, had.charge, had.away);
      }
    });
  };
}

void MemberBuckets::add_to_engine(uint32_t id, Parts& parts) {
  Bucket& bucket = buckets_.at(id);
  bucket.codec = parts.reducer->codec_name();
  bucket.gradients = parts.gradients;
  bucket.result = parts.result;
  bucket.used = parts.result->token();
  bucket.in_engine = true;
  if (parts.residual == 0) {
    parts.residual_charge.reset();
  }
  engine::BucketSpec spec;
  spec.job = facts_.job;
  spec.algorithm = parts.place.algorithm;
  spec.bucket = id;
  spec.name = parts.manifest->name;
  spec.retired = on_retired(parts);
  spec.plan = plan_facts(parts.plan, parts.place, *parts.reducer);
  spec.reducer = std::move(parts.reducer);
  spec.shards = std::move(parts.shards);
  spec.elements = manifest_elements(*parts.manifest);
  for (const auto& gradient : parts.gradients) {
    spec.gradients.push_back(gradient->data());
    spec.memory.push_back(gradient);
  }
  spec.result = parts.result->data();
  spec.memory.push_back(parts.result);
  node_.engine.add_bucket(std::move(spec), [id, weak = weak_from_this()](const Status& status) {
    const auto self = weak.lock();
    if (!self || !self->over_.ok()) {
      return;
    }
    if (status.ok()) {
      self->send_({{"type", "bucket_ready"}, {"bucket", id}});
    } else {
      self->give_up(id, status);
    }
  });
}

}  // namespace gradwire::control
