#include "daemon/control/plan_changes.h"

#include <algorithm>
#include <utility>

#include "daemon/control/documents.h"

namespace gradwire::control {

void PlanChanges::tell(uint32_t bucket, const Change& change, Json document) {
  document["bucket"] = bucket;
  document["change"] = change.number;
  for (uint32_t node = 0; node < nodes_; ++node) {
    hooks_.send(node, document);
  }
}

void PlanChanges::begin(uint32_t bucket, const Plan& plan) {
  if (changing(bucket)) {
    return;
  }
  Change& change = *(changes_[bucket] = std::make_unique<Change>(scheduler_));
  change.number = ++last_;
  change.plan = plan;
  tell(bucket, change, {{"type", "plan_prepare"}, {"plan", plan_to_json(plan)}});
}

void PlanChanges::forget(uint32_t bucket) {
  const auto found = changes_.find(bucket);
  if (found == changes_.end()) {
    return;
  }
  const Status cause(Code::kNotFound, "the bucket is destroyed");
  if (found->second->held.size() < nodes_) {
    give_up(bucket, cause);
    return;
  }
  // Too late to cancel, and nobody waits for the rest.
  const std::unique_ptr<Change> change = std::move(found->second);
  changes_.erase(found);
  hooks_.over(bucket, change->plan, cause);
}

Status PlanChanges::document(uint32_t node, const std::string& type, const Json& document) {
  Fields fields(document);
  const auto bucket = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
  const uint64_t number = fields.number("change", 1, UINT64_MAX);
  const uint64_t next = type == "plan_held" ? fields.number("next", 1, uint64_t{1} << 53) : 0;
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context(type));
  if (number > last_) {
    return {Code::kCorrupt, type + ": there is no change " + std::to_string(number)};
  }
  const auto found = changes_.find(bucket);
  if (found == changes_.end() || found->second->number != number) {
    return ok_status();  // it crossed the end of that change
  }
  Change& change = *found->second;
  const bool committed = change.held.size() == nodes_;
  if (type == "plan_failed") {
    if (committed) {
      return {Code::kCorrupt, type + ": the change is agreed on"};
    }
    give_up(bucket, read_failure(document));
    return ok_status();
  }
  if (type == "plan_held") {
    if (!change.held.insert(node).second) {
      return {Code::kCorrupt, type + ": said before"};
    }
    change.first = std::max(change.first, next);
    if (change.held.size() == nodes_) {
      commit(bucket, change);
    } else if (!change.patience.running()) {
      change.patience.start(patience_, [this, bucket] {
        give_up(bucket, Status(Code::kDeadlineExceeded, "not all nodes were ready for the plan in time"));
      });
    }
    return ok_status();
  }
  if (!committed || !change.changed.insert(node).second) {
    return {Code::kCorrupt, type + ": said before, or before the change was agreed on"};
  }
  if (change.changed.size() == nodes_) {
    tell(bucket, change, {{"type", "plan_go"}});
    const std::unique_ptr<Change> done = std::move(found->second);
    changes_.erase(found);
    hooks_.over(bucket, done->plan, ok_status());
  }
  return ok_status();
}

void PlanChanges::commit(uint32_t bucket, Change& change) {
  change.patience.stop();
  tell(bucket, change, {{"type", "plan_commit"}, {"from", change.first}});
}

void PlanChanges::give_up(uint32_t bucket, const Status& cause) {
  const auto found = changes_.find(bucket);
  found->second->patience.stop();
  const std::shared_ptr<Change> change = std::move(found->second);
  changes_.erase(found);
  tell(bucket, *change, {{"type", "plan_cancel"}});
  hooks_.over(bucket, change->plan, cause);
  scheduler_.post([change] {});  // its timer may be running this
}

}  // namespace gradwire::control
