// A bucket that is in use gets another plan, step by step as the coordinator orders it.
#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <utility>

#include "daemon/control/bucket_reducer.h"
#include "daemon/control/log.h"
#include "daemon/control/member_buckets.h"
#include "daemon/control/plan_candidates.h"

namespace gradwire::control {

struct MemberBuckets::Change {
  uint64_t number = 0;
  std::string bucket;
  Plan plan;
  config::CompressionPolicy policy;  // as the plan has it
  BucketPlace place;
  bool committed = false;
  bool changed = false;
  QuotaLedger::Charge charge;
  ResidualStore::Away away;  // while the residuals are on their way to the new reducer, and in it
  Status status;
  std::shared_ptr<engine::BucketChange> next = std::make_shared<engine::BucketChange>();
  std::vector<compress::LayerState> state;  // what the old reducer leaves
};

BucketPlace MemberBuckets::place_for(const Manifest& manifest, const config::CompressionPolicy& policy,
                                     const Plan& plan) const {
  BucketPlace place{facts_.nodes, facts_.node_index, facts_.max_payload,
                    algorithm_for(manifest, policy, plan.algorithm)};
  if (plan.segment != 0) {
    place.max_payload = std::min(place.max_payload, plan.segment);
  }
  return place;
}

std::shared_ptr<const engine::PlanFacts> MemberBuckets::plan_facts(Plan plan, const BucketPlace& place,
                                                                   const compress::BucketReducer& reducer) {
  plan.algorithm = place.algorithm;
  plan.codec = reducer.codec_name();
  auto facts = std::make_shared<engine::PlanFacts>();
  facts->text = describe(plan);
  facts->expected_ns = plan.expected_ns;
  facts->exact_ns = plan.exact_ns;
  return facts;
}

Status MemberBuckets::plan_document(const std::string& type, const Json& document) {
  if (type != "plan_prepare" && type != "plan_commit" && type != "plan_cancel" && type != "plan_go") {
    return {Code::kCorrupt, "the type '" + clean(type, 40) + "' is unknown"};
  }
  Fields fields(document);
  const auto id = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
  const uint64_t number = fields.number("change", 1, UINT64_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context(type));
  if (!over_.ok()) {
    return ok_status();
  }
  if (type == "plan_prepare") {
    return prepare(id, number, document);
  }
  const auto found = buckets_.find(id);
  if (found == buckets_.end() || !found->second.change || found->second.change->number != number) {
    return ok_status();  // the bucket, or the change, is gone
  }
  std::shared_ptr<Change> change = found->second.change;
  if (type == "plan_commit") {
    const uint64_t from = fields.number("from", 1, uint64_t{1} << 53);
    GRADWIRE_RETURN_IF_ERROR(fields.status().with_context(type));
    if (change->committed || !change->next->reducer) {
      return {Code::kCorrupt, type + ": the change is not prepared here, or agreed on already"};
    }
    change->committed = true;
    // A state that is being saved is that of one plan: the bucket rests until it is.
    when_nobody_saves([id, from, weak = std::weak_ptr(change)](MemberBuckets& self) {
      if (const auto still = weak.lock(); self.is_in_change(id, still)) {
        self.commit(id, still, from);
      }
    });
    return ok_status();
  }
  if (type == "plan_cancel" ? change->committed : !change->changed) {
    return {Code::kCorrupt, type + ": the change is at another step here"};
  }
  Bucket& bucket = found->second;
  if (type == "plan_go") {
    bucket.plan_codec = change->plan.codec;
    bucket.sole.reset();
    bucket.mixed = true;
  }
  bucket.change.reset();
  drop(std::move(change));
  node_.engine.go_on(facts_.job, id);
  return ok_status();
}

void MemberBuckets::refuse_change(uint32_t id, uint64_t number, const Status& cause) {
  Json document = failure_document("plan_failed", cause);
  document["bucket"] = id;
  document["change"] = number;
  send_(document);
}

Status MemberBuckets::prepare(uint32_t id, uint64_t number, const Json& document) {
  Fields fields(document);
  const Plan plan = read_plan(fields, facts_.max_payload);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("plan_prepare"));
  const auto found = buckets_.find(id);
  if (found != buckets_.end() && (found->second.building || !found->second.waiting.empty())) {
    refuse_change(id, number, Status(Code::kUnavailable, "it is still being built"));
    return ok_status();
  }
  if (found == buckets_.end() || !found->second.in_engine || found->second.holders.empty()) {
    refuse_change(id, number, Status(Code::kNotFound, "bucket " + std::to_string(id) + " is not in use"));
    return ok_status();
  }
  if (!saving_.expired()) {
    refuse_change(id, number, Status(Code::kUnavailable, "its compression state is being saved"));
    return ok_status();
  }
  Bucket& bucket = found->second;
  if (bucket.change) {
    return {Code::kCorrupt, "plan_prepare: bucket " + std::to_string(id) + " is in a change already"};
  }
  const auto change = std::make_shared<Change>();
  change->number = number;
  change->bucket = bucket.name;
  change->plan = plan;
  change->policy = planned_policy(*bucket.given, plan.codec);
  change->place = place_for(*bucket.manifest, change->policy, plan);
  change->next->algorithm = change->place.algorithm;
  // What is owed may be so since a plan before the one in use.
  const uint64_t bytes = residual_bytes(*bucket.manifest, change->place, change->policy) +
                         owed_bytes(*bucket.manifest, *bucket.given, change->policy) + bucket.owed_bytes;
  if (bytes > 0) {
    // Beside the old one's, until that is gone. No other job's residuals give way to a change that can be
    // left.
    const std::array<uint64_t, 1> parts = {bytes};
    const std::string formula =
        "another plan of " + bucket_text(bucket.name) + ": residuals " + std::to_string(bytes);
    auto charges = node_.quotas->charge_bytes(facts_.identity.uid, parts, formula);
    if (!charges.ok()) {
      refuse_change(id, number, charges.status());
      return ok_status();
    }
    change->charge = std::move(charges->front());
  }
  bucket.change = change;
  node_.workshop.run(
      [change, manifest = bucket.manifest] {
        try {
          auto made = make_reducer(*manifest, change->place, change->policy);
          change->status = made.status();
          if (made.ok()) {
            change->next->reducer = std::move(*made);
          }
        } catch (const std::bad_alloc&) {
          change->status = Status(Code::kResourceExhausted, "no memory for the residuals of another plan");
        }
      },
      [id, built = change, &workshop = node_.workshop, weak = weak_from_this()]() mutable {
        if (const auto self = weak.lock(); self && self->is_in_change(id, built)) {
          self->hold(id, built);
        }
        release_in(workshop, std::move(built));
      });
  return ok_status();
}

// Its reducer is large, and no thread but the workshop's should be the one to free it.
void MemberBuckets::drop(std::shared_ptr<Change> change) {
  if (change) {
    release_in(node_.workshop, std::move(change));
  }
}

bool MemberBuckets::is_in_change(uint32_t id, const std::shared_ptr<Change>& change) const {
  const auto found = buckets_.find(id);
  return over_.ok() && change && found != buckets_.end() && found->second.change == change;
}

void MemberBuckets::hold(uint32_t id, const std::shared_ptr<Change>& change) {
  if (!change->status.ok()) {
    drop(std::move(buckets_.at(id).change));
    refuse_change(id, change->number, change->status);
    return;
  }
  change->next->plan = plan_facts(change->plan, change->place, *change->next->reducer);
  node_.engine.hold_bucket(
      facts_.job, id,
      [id, weak_change = std::weak_ptr(change), weak = weak_from_this()](const Result<uint64_t>& next) {
        const auto self = weak.lock();
        auto still = weak_change.lock();
        if (!self || !self->is_in_change(id, still)) {
          return;
        }
        if (next.ok()) {
          self->send_({{"type", "plan_held"}, {"bucket", id}, {"change", still->number}, {"next", *next}});
        } else {
          self->buckets_.at(id).change.reset();
          self->refuse_change(id, still->number, next.status());
          self->drop(std::move(still));
        }
      });
}

// Agreed on by all nodes: from here on it happens, or the epoch ends.
void MemberBuckets::commit(uint32_t id, const std::shared_ptr<Change>& change, uint64_t from) {
  // The engine may keep this longer than anybody wants the change.
  const auto idle = [weak_change = std::weak_ptr(change), id, &scheduler = node_.scheduler,
                     &workshop = node_.workshop, weak = weak_from_this(),
                     store = std::weak_ptr(node_.residuals), job = facts_.identity, wanted = wanted_,
                     name = buckets_.at(id).name](compress::BucketReducer& old) {
    const auto still = weak_change.lock();
    if (!still) {
      return;
    }
    still->state = old.take_state();
    scheduler.post([change = still, id, &workshop, weak, store, job, wanted, name]() mutable {
      if (const auto self = weak.lock()) {
        self->take_over(id, change);
      } else if (const auto kept = store.lock(); kept && wanted && *wanted) {
        kept->keep(job, name, std::move(change->state));  // for the job's next epoch
      }
      release_in(workshop, std::move(change));
    });
  };
  node_.engine.let_begin(facts_.job, id, from, idle, [weak = weak_from_this()](const Status& status) {
    const auto self = weak.lock();
    if (self && self->over_.ok() && !status.ok() && status.code() != Code::kNotFound) {
      self->send_(failure_document("failed", status.with_context("a change of plan")));
    }
  });
}

// The bucket rests: what its old reducer has held back goes into the new one.
void MemberBuckets::take_over(uint32_t id, const std::shared_ptr<Change>& change) {
  if (!is_in_change(id, change)) {
    keep_state(change->state, change->bucket);
    return;
  }
  const Bucket& bucket = buckets_.at(id);
  if (wanted_ && change->charge) {
    change->away = node_.residuals->away(facts_.identity, bucket.name);
  }
  change->next->retired = retire_to_store(bucket.name, change->charge, change->away);
  node_.workshop.run(
      [change] {
        change->next->reducer->restore_state(change->state);
        change->state.clear();
      },
      [id, change, weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && self->is_in_change(id, change)) {
          self->swap(id, change);
        } else {
          change->next->retired(std::move(change->next->reducer));
        }
      });
}

void MemberBuckets::swap(uint32_t id, const std::shared_ptr<Change>& change) {
  node_.engine.change_bucket(
      facts_.job, id, change->next,
      [id, change, &workshop = node_.workshop, weak = weak_from_this()](const Status& status) {
        if (!status.ok()) {  // it has what the old one held back
          change->next->retired(std::move(change->next->reducer));
        }
        // The old reducer's memory, and the charge for it.
        workshop.run([change] { *change->next = {}; }, [] {});
        const auto self = weak.lock();
        if (!self || !self->is_in_change(id, change)) {
          return;
        }
        if (!status.ok()) {
          self->send_(failure_document("failed", status.with_context("a change of plan")));
          return;
        }
        change->changed = true;
        self->buckets_.at(id).away = std::exchange(change->away, nullptr);
        self->send_({{"type", "plan_changed"}, {"bucket", id}, {"change", change->number}});
      });
}

std::weak_ptr<const std::string> MemberBuckets::away_of(const std::shared_ptr<Change>& change) {
  return change ? std::weak_ptr(change->away) : std::weak_ptr<const std::string>();
}

std::shared_ptr<void> MemberBuckets::saving() {
  std::shared_ptr<void> token = saving_.lock();
  if (!token) {
    // Whoever lets it go last may be on another thread.
    token =
        std::shared_ptr<void>(&after_saves_, [&scheduler = node_.scheduler, weak = weak_from_this()](void*) {
          scheduler.post([weak] {
            if (const auto self = weak.lock()) {
              self->nobody_saves();
            }
          });
        });
    saving_ = token;
  }
  return token;
}

void MemberBuckets::when_nobody_saves(std::function<void(MemberBuckets&)> then) {
  if (saving_.expired()) {
    then(*this);
  } else {
    after_saves_.push_back(std::move(then));
  }
}

void MemberBuckets::nobody_saves() {
  if (!saving_.expired()) {
    return;  // somebody does again
  }
  for (const auto& then : std::exchange(after_saves_, {})) {
    then(*this);
  }
}

void MemberBuckets::coded(const engine::JobSnapshot& job) {
  constexpr uint64_t kEnough = uint64_t{1} << 20;  // elements
  constexpr uint32_t kTargetReached = 255;         // the warm start is over
  if (!node_.costs || !node_.costs->knows_any()) {
    return;  // nobody plans
  }
  for (const engine::BucketSnapshot& seen : job.buckets) {
    const auto found = buckets_.find(seen.bucket);
    if (found == buckets_.end()) {
      continue;
    }
    Bucket& bucket = found->second;
    const uint64_t hops = seen.hop_elements - bucket.hop_elements;
    const uint64_t decodes = seen.decode_elements - bucket.decode_elements;
    if (hops < kEnough || decodes < kEnough) {
      continue;
    }
    if (!bucket.change && !bucket.mixed && seen.warm_stage == kTargetReached) {
      if (const auto& settings = sole_settings_of(bucket)) {
        node_.costs->seen(
            *settings, static_cast<double>(seen.hop_ns - bucket.hop_ns) / static_cast<double>(hops),
            static_cast<double>(seen.decode_ns - bucket.decode_ns) / static_cast<double>(decodes));
      }
    }
    bucket.mixed = false;
    bucket.hop_ns = seen.hop_ns;
    bucket.hop_elements = seen.hop_elements;
    bucket.decode_ns = seen.decode_ns;
    bucket.decode_elements = seen.decode_elements;
  }
}

const std::optional<config::PolicySettings>& MemberBuckets::sole_settings_of(Bucket& bucket) const {
  if (!bucket.sole) {
    bucket.sole = sole_settings(*bucket.manifest, planned_policy(*bucket.given, bucket.plan_codec));
  }
  return *bucket.sole;
}

void MemberBuckets::keep_state(std::vector<compress::LayerState>& state, const std::string& bucket) {
  if (wanted_ && *wanted_ && !state.empty()) {
    node_.residuals->keep(facts_.identity, bucket, std::move(state));
  }
  state.clear();
}

}  // namespace gradwire::control
