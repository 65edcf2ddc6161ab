#include "daemon/control/bucket_rounds.h"

#include <algorithm>

namespace gradwire::control {
namespace {

constexpr size_t kLabels = 16384;  // buckets whose names are remembered for sentences

}  // namespace

BucketRounds::BucketRounds(Scheduler& scheduler, Nanoseconds timeout, uint32_t world, uint32_t nodes,
                           Hooks hooks)
    : scheduler_(scheduler), timeout_(timeout), world_(world), nodes_(nodes), hooks_(std::move(hooks)) {}

BucketRounds::RoundPtr BucketRounds::round_for(const std::string& name, uint32_t rank) {
  auto& rounds = forming_[name];
  const auto found = std::find_if(rounds.begin(), rounds.end(),
                                  [rank](const RoundPtr& round) { return !round->arrived.contains(rank); });
  if (found != rounds.end()) {
    return *found;
  }
  auto round = std::make_shared<Round>(scheduler_);
  round->deadline.start(timeout_, [this, weak = std::weak_ptr<Round>(round)] {
    if (auto expired = weak.lock()) {
      expire(expired);
    }
  });
  rounds.push_back(round);
  return round;
}

void BucketRounds::created(uint32_t rank, const Manifest& manifest) {
  const RoundPtr round = round_for(manifest.name, rank);
  if (!round->failure.ok()) {
    round->arrived.insert(rank);
    tell_failure(*round, {rank});
    forget_if_told(round);
    return;
  }
  if (round->arrived.empty()) {
    round->first = manifest;
    round->first_rank = rank;
  }
  round->arrived.insert(rank);
  if (manifest != round->first) {
    fail(round, Status(Code::kMismatch, describe_difference(round->first, hooks_.place(round->first_rank),
                                                            manifest, hooks_.place(rank))));
    return;
  }
  if (round->arrived.size() == world_) {
    all_arrived(round);
    return;
  }
  for (const uint32_t gone : left_) {
    if (!round->arrived.contains(gone)) {
      fail(round, Status(Code::kUnavailable, bucket_text(manifest.name) + " cannot be created: " +
                                                 hooks_.place(gone) + " has left the job"));
      return;
    }
  }
}

void BucketRounds::all_arrived(const RoundPtr& round) {
  auto& rounds = forming_[round->first.name];
  std::erase(rounds, round);
  if (rounds.empty()) {
    forming_.erase(round->first.name);
  }
  round->bucket = ++last_bucket_;
  building_[round->bucket] = round;
  labels_[round->bucket] = bucket_text(round->first.name);
  if (labels_.size() > kLabels) {
    labels_.erase(labels_.begin());
  }
  hooks_.plan(round->bucket, round->first,
              [this, bucket = round->bucket](const Json& policy, const Json& plan) {
                planned(bucket, policy, plan);
              });
}

void BucketRounds::planned(uint32_t bucket, const Json& policy, const Json& plan) {
  const auto found = building_.find(bucket);
  if (found == building_.end()) {
    return;  // it has failed meanwhile
  }
  const Json document{{"type", "bucket_ok"},
                      {"name", found->second->first.name},
                      {"bucket", bucket},
                      {"policy", policy},
                      {"plan", plan}};
  for (uint32_t node = 0; node < nodes_; ++node) {
    hooks_.send(node, document);
  }
}

void BucketRounds::ready(uint32_t node, uint32_t bucket) {
  const auto found = building_.find(bucket);
  if (found == building_.end()) {
    return;  // it has failed on another node meanwhile
  }
  found->second->built.insert(node);
  if (found->second->built.size() < nodes_) {
    return;
  }
  building_.erase(found);
  for (uint32_t each = 0; each < nodes_; ++each) {
    hooks_.send(each, {{"type", "bucket_go"}, {"bucket", bucket}});
  }
}

void BucketRounds::failed(uint32_t bucket, const Status& cause) {
  const auto found = building_.find(bucket);
  if (found == building_.end()) {
    return;
  }
  const RoundPtr round = found->second;
  building_.erase(found);
  round->failure = cause;
  tell_failure(*round, round->arrived);
}

void BucketRounds::rank_left(uint32_t rank) {
  left_.insert(rank);
  std::vector<RoundPtr> hopeless;
  for (const auto& [name, rounds] : forming_) {
    for (const RoundPtr& round : rounds) {
      if (!round->arrived.contains(rank)) {
        hopeless.push_back(round);
      }
    }
  }
  for (const RoundPtr& round : hopeless) {
    if (round->failure.ok()) {
      fail(round, Status(Code::kUnavailable, bucket_text(round->first.name) + " cannot be created: " +
                                                 hooks_.place(rank) + " has left the job"));
    } else {
      forget_if_told(round);
    }
  }
}

void BucketRounds::expire(const RoundPtr& round) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count();
  const std::string limit =
      " within operation_timeout (" + format_duration_ms(static_cast<uint64_t>(milliseconds)) + ") ";
  const std::string bucket = bucket_text(round->first.name);
  if (round->bucket == 0) {
    fail(round, Status(Code::kDeadlineExceeded,
                       bucket + " was not created" + limit + "by " + hooks_.places(missing(*round))));
    return;
  }
  std::vector<uint32_t> waiting;  // for their nodes
  for (const uint32_t rank : round->arrived) {
    if (!round->built.contains(hooks_.node(rank))) {
      waiting.push_back(rank);
    }
  }
  failed(round->bucket, Status(Code::kDeadlineExceeded,
                               bucket + " did not get its memory" + limit + "for " + hooks_.places(waiting) +
                                   ": make smaller buckets, or look for what else fills that memory"));
}

void BucketRounds::fail(const RoundPtr& round, const Status& cause) {
  round->failure = cause;
  round->deadline.stop();
  tell_failure(*round, round->arrived);
  forget_if_told(round);
}

void BucketRounds::tell_failure(const Round& round, const std::set<uint32_t>& ranks) {
  std::map<uint32_t, std::vector<uint32_t>> by_node;
  for (const uint32_t rank : ranks) {
    by_node[hooks_.node(rank)].push_back(rank);
  }
  Json document = failure_document("bucket_failed", round.failure);
  document["name"] = round.first.name;
  document["bucket"] = round.bucket;
  for (const auto& [node, told] : by_node) {
    document["ranks"] = told;
    hooks_.send(node, document);
  }
}

void BucketRounds::forget_if_told(const RoundPtr& round) {
  for (const uint32_t rank : missing(*round)) {
    if (!left_.contains(rank)) {
      return;
    }
  }
  const auto found = forming_.find(round->first.name);
  if (found != forming_.end()) {
    std::erase(found->second, round);
    if (found->second.empty()) {
      forming_.erase(found);
    }
  }
}

std::string BucketRounds::label(uint32_t bucket) const {
  const auto found = labels_.find(bucket);
  const std::string number = std::to_string(bucket);
  return found == labels_.end() ? "bucket " + number : found->second + " (" + number + ")";
}

std::vector<uint32_t> BucketRounds::missing(const Round& round) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (!round.arrived.contains(rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

}  // namespace gradwire::control
