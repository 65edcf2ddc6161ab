#include "daemon/control/member_buckets.h"

#include <algorithm>

namespace gradwire::control {
namespace {

constexpr unsigned kRemoveAttempts = 1000;
constexpr unsigned kPatientAttempts = 100;  // as long as the answer to a destroy waits
constexpr Nanoseconds kRemoveAgain = std::chrono::milliseconds(10);
constexpr Nanoseconds kUnmappedSoon = std::chrono::milliseconds(1);

}  // namespace

MemberBuckets::MemberBuckets(NodeContext& node, JobFacts facts, std::function<void(const Json&)> send)
    : node_(node), facts_(std::move(facts)), send_(std::move(send)) {}

void MemberBuckets::begin() {
  begun_ = true;
  if (node_.residuals) {
    wanted_ = node_.residuals->epoch_begins(facts_.identity);
  }
}

std::vector<std::pair<uint32_t, std::string>> MemberBuckets::names() const {
  std::vector<std::pair<uint32_t, std::string>> names;
  for (const auto& [id, bucket] : buckets_) {
    if (!bucket.holders.empty()) {
      names.emplace_back(id, bucket.name);
    }
  }
  return names;
}

size_t MemberBuckets::count() const {
  size_t count = buckets_.size();
  for (const auto& [name, rounds] : rounds_) {
    count += rounds.size();
  }
  return count;
}

void MemberBuckets::create(uint32_t rank, const Manifest& manifest, Reply<BucketCreated> reply) {
  if (!over_.ok()) {
    reply(over_);
    return;
  }
  for (const auto& [id, bucket] : buckets_) {
    if (bucket.name == manifest.name && (bucket.holders.contains(rank) || bucket.waiting.contains(rank))) {
      reply(Status(Code::kAlreadyExists, "rank " + std::to_string(rank) + " already has a " +
                                             bucket_text(manifest.name) +
                                             "; destroy it first or choose another name"));
      return;
    }
  }
  auto& rounds = rounds_[manifest.name];
  auto round = std::find_if(rounds.begin(), rounds.end(),
                            [rank](const Round& each) { return !each.waiting.contains(rank); });
  if (round == rounds.end()) {
    if (count() >= node_.quotas->buckets_per_job()) {
      if (rounds.empty()) {
        rounds_.erase(manifest.name);
      }
      reply(Status(Code::kResourceExhausted,
                   "the job has " + std::to_string(count()) + " buckets on node " + node_.self.name +
                       " and asks for 1 more (" + bucket_text(manifest.name) +
                       "); quotas.buckets_per_job is " + std::to_string(node_.quotas->buckets_per_job()) +
                       ": put more layers into each bucket, destroy some, or raise it in the daemon's "
                       "configuration"));
      return;
    }
    round = rounds.emplace(rounds.end());
    round->manifest = manifest;
  }
  round->waiting.emplace(rank, std::move(reply));
  Json document{{"type", "bucket"}, {"rank", rank}};
  write_manifest(manifest, &document);
  send_(document);
}

Status MemberBuckets::document(const std::string& type, const Json& document) {
  if (!over_.ok()) {
    return ok_status();
  }
  return type == "bucket_ok" ? numbered(document) : type == "bucket_go" ? go(document) : failed(document);
}

// The coordinator answers with bucket_failed, which ends the bucket here too.
void MemberBuckets::give_up(uint32_t id, const Status& cause) {
  Json document = failure_document("bucket_failed", cause);
  document["bucket"] = id;
  send_(document);
}

Status MemberBuckets::go(const Json& document) {
  Fields fields(document);
  const auto id = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("bucket_go"));
  const auto found = buckets_.find(id);
  if (found == buckets_.end() || !found->second.in_engine || found->second.waiting.empty()) {
    return Status(Code::kCorrupt, "bucket_go: bucket " + std::to_string(id) + " is not built here");
  }
  Bucket& bucket = found->second;
  const auto waiting = std::move(bucket.waiting);
  bucket.waiting.clear();
  for (const auto& entry : waiting) {
    bucket.holders.insert(entry.first);
  }
  const auto gradients = std::move(bucket.gradients);
  bucket.gradients.clear();
  const auto result = std::move(bucket.result);
  const std::string codec = bucket.codec;
  size_t index = 0;  // both run over the local ranks in ascending order
  for (const auto& [rank, reply] : waiting) {
    const auto& gradient = gradients[index++];
    reply(BucketCreated{id, codec, gradient->bytes(), result->bytes(), gradient->fd(), result->fd()});
    gradient->forget_fd();
  }
  result->forget_fd();
  return ok_status();
}

Status MemberBuckets::failed(const Json& document) {
  Fields fields(document);
  const std::string name = fields.text("name", 1, kMaxBucketName);
  const auto id = fields.number<uint32_t>("bucket", 0, UINT32_MAX);
  const std::vector<uint32_t> ranks = fields.numbers("ranks", kMaxWorld, kMaxWorld - 1);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("bucket_failed"));
  const Status cause = read_failure(document);
  std::vector<Reply<BucketCreated>> told;
  if (id != 0) {
    const auto found = buckets_.find(id);
    if (found == buckets_.end() || found->second.failed) {
      return ok_status();
    }
    Bucket& bucket = found->second;
    for (auto& [rank, reply] : bucket.waiting) {
      told.push_back(std::move(reply));
    }
    bucket.waiting.clear();
    bucket.failed = true;
    bucket.name.clear();  // it may be used again
    if (bucket.in_engine) {
      remove(id, 0);
    } else if (!bucket.building) {
      buckets_.erase(found);
    }
  } else if (const auto found = rounds_.find(name); found != rounds_.end()) {
    for (const uint32_t rank : ranks) {
      for (Round& round : found->second) {
        const auto waiting = round.waiting.find(rank);
        if (waiting != round.waiting.end()) {
          told.push_back(std::move(waiting->second));
          round.waiting.erase(waiting);
          break;
        }
      }
    }
    std::erase_if(found->second, [](const Round& round) { return round.waiting.empty(); });
    if (found->second.empty()) {
      rounds_.erase(found);
    }
  }
  for (const auto& reply : told) {
    reply(cause);
  }
  return ok_status();
}

void MemberBuckets::destroy(uint32_t rank, uint32_t id, const Answer& reply) {
  const auto found = buckets_.find(id);
  if (over_.ok() && (found == buckets_.end() || found->second.holders.erase(rank) == 0)) {
    reply(Status(Code::kNotFound, "rank " + std::to_string(rank) + " has no bucket " + std::to_string(id)));
    return;
  }
  if (over_.ok() && found->second.holders.empty()) {
    destroyed_.push_back(id);
    send_({{"type", "bucket_destroyed"}, {"bucket", id}});
    // Its quota and its residuals are free for the next bucket when the answer comes.
    found->second.freed = reply;
    remove(id, 0);
    return;
  }
  reply(ok_status());
}

void MemberBuckets::remove(uint32_t id, unsigned attempt) {
  node_.engine.remove_bucket(facts_.job, id, [id, attempt, weak = weak_from_this()](const Status& status) {
    const auto self = weak.lock();
    if (!self || !self->over_.ok()) {
      return;
    }
    const auto found = self->buckets_.find(id);
    const bool gone = status.code() != Code::kUnavailable || attempt >= kRemoveAttempts;
    Answer freed;
    std::weak_ptr<void> used;
    if (found != self->buckets_.end() && (gone || attempt >= kPatientAttempts)) {
      freed.swap(found->second.freed);
      used = found->second.used;
    }
    if (gone && found != self->buckets_.end()) {
      self->drop(std::move(found->second.change));
      self->buckets_.erase(found);
    }
    if (freed) {
      self->answer_when_free(freed, used, attempt);
    }
    if (gone) {
      return;
    }
    // Its last messages to other nodes are still on their way.
    self->node_.scheduler.after(kRemoveAgain, [id, attempt, weak] {
      if (const auto again = weak.lock(); again && again->over_.ok()) {
        again->remove(id, attempt + 1);
      }
    });
  });
}

// The engine unmaps a bucket whose last operation is not put away yet a moment after it has removed it.
void MemberBuckets::answer_when_free(const Answer& freed, const std::weak_ptr<void>& used, unsigned attempt) {
  if (!over_.ok() || attempt >= kPatientAttempts || used.expired()) {
    freed(ok_status());
    return;
  }
  node_.scheduler.after(kUnmappedSoon, [freed, used, attempt, weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->answer_when_free(freed, used, attempt + 1);
    } else {
      freed(ok_status());
    }
  });
}

void MemberBuckets::over(const Status& cause, bool in_order) {
  if (!over_.ok()) {
    return;
  }
  if (begun_ && node_.residuals) {
    node_.residuals->epoch_ends(facts_.identity, in_order);
  }
  over_ = cause.ok() ? Status(Code::kAborted, "the job has ended") : cause;
  std::vector<Reply<BucketCreated>> told;
  for (auto& [name, rounds] : rounds_) {
    for (Round& round : rounds) {
      for (auto& [rank, reply] : round.waiting) {
        told.push_back(std::move(reply));
      }
    }
  }
  std::vector<Answer> freed;
  for (auto& [id, bucket] : buckets_) {
    for (auto& [rank, reply] : bucket.waiting) {
      told.push_back(std::move(reply));
    }
    if (bucket.freed) {
      freed.push_back(std::move(bucket.freed));
    }
    drop(std::move(bucket.change));
  }
  rounds_.clear();
  buckets_.clear();
  for (const Answer& reply : freed) {
    reply(ok_status());
  }
  for (const auto& reply : told) {
    reply(over_);
  }
}

}  // namespace gradwire::control
