// The compression state of a job on this node: what a trainer saves, and where what it loads goes.
#include "daemon/control/bucket_reducer.h"
#include "daemon/control/member.h"

namespace gradwire::control {

Result<StateSave::Source> Member::state_source() const {
  if (state_ != State::kRunning || !buckets_) {
    return over() ? cause_ : Status(Code::kInvalidArgument, "the job has not started");
  }
  StateSave::Source source;
  source.job = job_;
  source.uid = identity_.uid;
  source.origin.epoch = epoch_->counter;
  source.origin.nodes = static_cast<uint32_t>(epoch_->nodes.size());
  source.origin.node_index = epoch_->index;
  source.origin.world = epoch_->world;
  source.buckets = buckets_->names();
  if (node_.residuals) {
    source.kept = node_.residuals->copy(identity_);
  }
  return source;
}

Status Member::may_load_state() const {
  if (state_ != State::kRunning || !buckets_) {
    return over() ? cause_ : Status(Code::kInvalidArgument, "the job has not started");
  }
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

Status Member::load_state(std::vector<compress::StateSection> sections) {
  GRADWIRE_RETURN_IF_ERROR(may_load_state());
  return node_.residuals->replace(identity_, std::move(sections));
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
