#include "daemon/control/member_buckets.h"

#include <algorithm>
#include <new>

#include "config/policy_json.h"
#include "daemon/control/bucket_reducer.h"

namespace gradwire::control {

struct MemberBuckets::Parts {
  Status status;
  std::shared_ptr<void> charge;
  std::vector<std::shared_ptr<SharedMemory>> gradients;
  std::shared_ptr<SharedMemory> result;
  std::unique_ptr<compress::BucketReducer> reducer;
  std::string name;
  uint64_t elements = 0;
};

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
      reply(Status(Code::kAlreadyExists, "rank " + std::to_string(rank) + " already has a bucket '" +
                                             manifest.name + "'; destroy it first or choose another name"));
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
      reply(Status(Code::kResourceExhausted, "the job has " + std::to_string(count()) +
                                                 " buckets; quotas.buckets_per_job is " +
                                                 std::to_string(node_.quotas->buckets_per_job())));
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

Status MemberBuckets::numbered(const Json& document) {
  Fields fields(document);
  const std::string name = fields.text("name", 1, kMaxBucketName);
  const auto id = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
  const Json* policy_json = fields.object("policy");
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("bucket_ok"));
  const Result<config::CompressionPolicy> policy = config::policy_from_json(*policy_json);
  GRADWIRE_RETURN_IF_ERROR(policy.status().with_context("bucket_ok, policy"));
  const auto found = rounds_.find(name);
  if (found == rounds_.end() || found->second.front().waiting.size() != facts_.local_ranks.size() ||
      buckets_.contains(id)) {
    return Status(Code::kCorrupt,
                  "bucket_ok: bucket '" + name + "' is not waiting here for number " + std::to_string(id));
  }
  Round round = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) {
    rounds_.erase(found);
  }
  Bucket& bucket = buckets_[id];
  bucket.name = name;
  bucket.waiting = std::move(round.waiting);
  build(id, round.manifest, *policy);
  return ok_status();
}

void MemberBuckets::build(uint32_t id, const Manifest& manifest, const config::CompressionPolicy& policy) {
  const uint64_t elements = manifest_elements(manifest);
  const uint64_t bytes = elements * compress::dtype_size(static_cast<compress::Dtype>(manifest.dtype));
  const uint64_t region = page_rounded(bytes);
  const size_t ranks = facts_.local_ranks.size();
  auto parts = std::make_shared<Parts>();
  parts->name = manifest.name;
  parts->elements = elements;
  auto charge =
      node_.quotas->charge_bytes(facts_.uid, region * (ranks + 1),
                                 "bucket '" + manifest.name + "': (" + std::to_string(ranks) +
                                     " local ranks + 1 result) x " + std::to_string(region) + " bytes");
  if (!charge.ok()) {
    give_up(id, charge.status());
    return;
  }
  parts->charge = *charge;
  const auto work = [parts, manifest, policy, region, ranks, nodes = facts_.nodes,
                     max_payload = facts_.max_payload] {
    for (size_t i = 0; i <= ranks; ++i) {
      const bool gradient = i < ranks;
      auto memory = SharedMemory::create(manifest.name, region, gradient ? Access::kBoth : Access::kReadOnly);
      if (!memory.ok()) {
        parts->status = memory.status();
        return;
      }
      if (gradient) {
        parts->gradients.push_back(std::move(*memory));
      } else {
        parts->result = std::move(*memory);
      }
    }
    try {
      auto reducer = make_reducer(manifest, nodes, max_payload, policy);
      if (!reducer.ok()) {
        parts->status = reducer.status().with_context("bucket '" + manifest.name + "'");
        return;
      }
      parts->reducer = std::move(*reducer);
    } catch (const std::bad_alloc&) {
      parts->status = Status(Code::kResourceExhausted, "no memory for the residuals of bucket '" +
                                                           manifest.name + "'; use smaller buckets");
    }
  };
  buckets_.at(id).building = true;
  node_.workshop.run(work, [parts, id, weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->built(id, *parts);
    }
  });
}

void MemberBuckets::built(uint32_t id, Parts& parts) {
  const auto found = buckets_.find(id);
  if (!over_.ok() || found == buckets_.end()) {
    return;
  }
  Bucket& bucket = found->second;
  bucket.building = false;
  if (bucket.failed) {
    buckets_.erase(found);
    return;
  }
  if (!parts.status.ok()) {
    give_up(id, parts.status);
    return;
  }
  bucket.codec = parts.reducer->codec_name();
  bucket.gradients = parts.gradients;
  bucket.result = parts.result;
  bucket.in_engine = true;
  engine::BucketSpec spec;
  spec.job = facts_.job;
  spec.bucket = id;
  spec.name = parts.name;
  spec.reducer = std::move(parts.reducer);
  spec.elements = parts.elements;
  for (const auto& gradient : parts.gradients) {
    spec.gradients.push_back(gradient->data());
    spec.memory.push_back(gradient);
  }
  spec.result = parts.result->data();
  spec.memory.push_back(parts.result);
  spec.memory.push_back(parts.charge);
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
    remove(id, 0);
  }
  reply(ok_status());
}

void MemberBuckets::remove(uint32_t id, unsigned attempt) {
  node_.engine.remove_bucket(facts_.job, id, [id, attempt, weak = weak_from_this()](const Status& status) {
    const auto self = weak.lock();
    if (!self || !self->over_.ok()) {
      return;
    }
    if (status.code() != Code::kUnavailable || attempt >= 1000) {
      self->buckets_.erase(id);
      return;
    }
    // Its last messages to other nodes are still on their way.
    self->node_.scheduler.after(std::chrono::milliseconds(10), [id, attempt, weak] {
      if (const auto again = weak.lock(); again && again->over_.ok()) {
        again->remove(id, attempt + 1);
      }
    });
  });
}

void MemberBuckets::over(const Status& cause) {
  if (!over_.ok()) {
    return;
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
  for (auto& [id, bucket] : buckets_) {
    for (auto& [rank, reply] : bucket.waiting) {
      told.push_back(std::move(reply));
    }
  }
  rounds_.clear();
  buckets_.clear();
  for (const auto& reply : told) {
    reply(over_);
  }
}

}  // namespace gradwire::control
