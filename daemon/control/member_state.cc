// The compression state of a job on this node: what a trainer saves, and where what it loads goes.
#include "daemon/control/bucket_reducer.h"
#include "daemon/control/member.h"

namespace gradwire::control {

// Why there is no state to save or to load; ok if there is.
Status Member::state_status() const {
  if (state_ == State::kFailing) {
    return {Code::kAborted, describe(identity_) + " is failing on this node; its end comes with the cause"};
  }
  if (state_ != State::kRunning || !buckets_) {
    return over() ? cause_ : Status(Code::kInvalidArgument, "the job has not started");
  }
  return ok_status();
}

Result<StateSave::Source> Member::state_source() {
  GRADWIRE_RETURN_IF_ERROR(state_status());
  StateSave::Source source;
  source.job = job_;
  source.identity = identity_;
  source.origin.epoch = epoch_->counter;
  source.origin.nodes = static_cast<uint32_t>(epoch_->nodes.size());
  source.origin.node_index = epoch_->index;
  source.origin.world = epoch_->world;
  source.buckets = buckets_->names();
  source.absent = buckets_->absent();
  source.saving = buckets_->saving();
  return source;
}

Status Member::may_load_state() const {
  GRADWIRE_RETURN_IF_ERROR(state_status());
  if (!node_.residuals) {
    return Status(Code::kUnsupported, "this daemon keeps no residuals");
  }
  if (const auto bucket = buckets_->with_residuals()) {
    return Status(
        Code::kInvalidArgument,
        bucket_text(*bucket) +
            " exists, and buckets take up a compression state when they are created: load it before "
            "buckets are created, or destroy them first");
  }
  return ok_status();
}

void Member::before_load(const Answer& ready) {
  if (const Status status = may_load_state(); !status.ok()) {
    ready(status);
    return;
  }
  // Else what comes back from a destroyed bucket later would lie beside what is loaded.
  node_.residuals->when_home(buckets_->absent(), ready);
}

Status Member::load_state(std::vector<compress::StateSection>&& sections, AdmittedState admitted) {
  GRADWIRE_RETURN_IF_ERROR(may_load_state());
  return node_.residuals->replace(identity_, std::move(sections), std::move(admitted));
}

ResidualStore::Absent MemberBuckets::absent() const {
  if (!node_.residuals) {
    return {};
  }
  std::set<std::weak_ptr<const std::string>, std::owner_less<>> in_use;
  for (const auto& [id, bucket] : buckets_) {
    if (!bucket.holders.empty()) {
      in_use.insert({bucket.away, away_of(bucket.change)});
    }
  }
  auto absent = node_.residuals->absent(facts_.identity);
  std::erase_if(absent, [&in_use](const auto& each) { return in_use.contains(each); });
  return absent;
}

std::optional<std::string> MemberBuckets::with_residuals() const {
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.has_residuals && !bucket.failed && (!bucket.holders.empty() || !bucket.waiting.empty())) {
      return bucket.name;
    }
  }
  return std::nullopt;
}

}  // namespace gradwire::control
