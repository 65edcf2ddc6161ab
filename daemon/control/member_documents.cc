// What the coordinator says to a member.
#include <algorithm>
#include <cstring>

#include "daemon/control/log.h"
#include "daemon/control/member.h"

namespace gradwire::control {
namespace {

engine::EpochKey epoch_key(const std::string& bytes) {
  engine::EpochKey key{};
  std::memcpy(key.data(), bytes.data(), std::min(bytes.size(), key.size()));
  return key;
}

}  // namespace

void Member::received(const Json& document) {
  const auto self = shared_from_this();
  if (liveness_) {
    liveness_->heard();
  }
  Fields fields(document);
  const std::string type = fields.text("type", 1, 64);
  Status status = fields.status();
  if (status.ok()) {
    status = handle(type, document);
  }
  if (!status.ok()) {
    report(Status(status.code(), coordinator() + " sent an odd document: " + status.message()));
  }
}

Status Member::handle(const std::string& type, const Json& document) {
  if (over() || type == "beat") {
    return ok_status();
  }
  if (type == "abort" || type == "error") {
    finish(read_failure(document));
    return ok_status();
  }
  if (state_ == State::kConnecting) {
    return type == "hello" ? hello(document) : Status(Code::kCorrupt, "the first document is not a hello");
  }
  if (type == "join_refused") {
    return refused(document);
  }
  if (type == "epoch") {
    return start(document);
  }
  if (!epoch_ || !buckets_) {
    return Status(Code::kCorrupt, "'" + clean(type, 40) + "' before the epoch");
  }
  if (type == "go") {
    return go();
  }
  if (type == "bucket_ok" || type == "bucket_go" || type == "bucket_failed") {
    return buckets_->document(type, document);
  }
  if (type == "who_misses") {
    return who_misses(document);
  }
  if (type == "stalled") {
    log_warning("stall", {{"job", identity_.name}, {"what", read_failure(document).message()}});
    return ok_status();
  }
  if (type == "rank_left") {
    return rank_left(document);
  }
  if (type == "end") {
    ended();
    return ok_status();
  }
  return Status(Code::kCorrupt, "the type '" + clean(type, 40) + "' is unknown");
}

Status Member::hello(const Json& document) {
  Fields fields(document);
  const auto protocol = fields.number<uint32_t>("protocol", 0, UINT32_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("hello"));
  Result<NodeInfo> info = read_hello(document);
  GRADWIRE_RETURN_IF_ERROR(info.status());
  coordinator_ = std::move(*info);
  if (const Status versions = check_versions(protocol, coordinator_, node_.self); !versions.ok()) {
    finish(versions);
    return ok_status();
  }
  const Nanoseconds timeout =
      std::max<Nanoseconds>(node_.peer_timeout, std::chrono::milliseconds(coordinator_.peer_timeout_ms));
  liveness_ = std::make_unique<Liveness>(node_.scheduler, link_, timeout, [this](const Status& why) {
    finish(Status(Code::kAborted, coordinator() + " is gone: " + why.message()));
  });
  state_ = State::kForming;
  const Nanoseconds left = join_deadline_ - node_.scheduler.now();
  join_timer_.start(std::max<Nanoseconds>(left, Nanoseconds(0)) + node_.peer_timeout,
                    [this] { join_timed_out(); });
  send_joins();
  return ok_status();
}

Status Member::refused(const Json& document) {
  Fields fields(document);
  const auto rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("join_refused"));
  const auto found = locals_.find(rank);
  if (found == locals_.end() || !found->second.reply || !forming()) {
    return ok_status();
  }
  const auto reply = std::move(found->second.reply);
  locals_.erase(found);
  const Status cause = read_failure(document);
  reply(cause);
  if (locals_.empty()) {
    finish(cause);
  }
  return ok_status();
}

Status Member::start(const Json& document) {
  Result<Epoch> epoch = read_epoch(document);
  GRADWIRE_RETURN_IF_ERROR(epoch.status());
  if (state_ != State::kForming) {
    return Status(Code::kCorrupt, "a second epoch on one connection");
  }
  epoch_ = std::move(*epoch);
  state_ = State::kStarting;
  join_timer_.stop();
  const EpochNode& self = epoch_->nodes[epoch_->index];
  MemberBuckets::JobFacts facts{job_, identity_.uid, static_cast<uint32_t>(epoch_->nodes.size()),
                                epoch_->max_payload, self.ranks};
  buckets_ = std::make_shared<MemberBuckets>(node_, facts, [this](const Json& each) { send(each); });
  engine::JobSpec spec;
  spec.id = job_;
  spec.name = identity_.name;
  spec.key = epoch_key(epoch_->key);
  spec.nodes = facts.nodes;
  spec.node_index = epoch_->index;
  spec.rank_node.resize(epoch_->world);
  for (uint32_t index = 0; index < facts.nodes; ++index) {
    spec.node_names.push_back(epoch_->nodes[index].name);
    for (const uint32_t rank : epoch_->nodes[index].ranks) {
      spec.rank_node[rank] = index;
    }
  }
  if (facts.nodes > 1) {
    spec.left_address = epoch_->nodes[(epoch_->index + facts.nodes - 1) % facts.nodes].transport_address;
    spec.right_address = epoch_->nodes[(epoch_->index + 1) % facts.nodes].transport_address;
  }
  for (const uint32_t rank : self.ranks) {
    const auto local = locals_.find(rank);
    if (local == locals_.end() || local->second.gone) {
      // The coordinator hears of it and ends the epoch; this is for one that does not.
      failing_timer_.start(node_.peer_timeout, [this, rank] {
        finish(Status(Code::kAborted, "rank " + std::to_string(rank) + " went away before the job started"));
      });
      return ok_status();
    }
    auto session = make_session_memory(rank, epoch_->world, ++node_.last_generation);
    if (!session.ok()) {
      report(session.status());
      return ok_status();
    }
    local->second.session = *session;
    engine::LocalRank engine_rank;
    engine_rank.rank = rank;
    engine_rank.session = (*session)->header();
    engine_rank.bell_fd = (*session)->bell();
    engine_rank.memory = *session;
    spec.local_ranks.push_back(std::move(engine_rank));
  }
  if (self.ranks.size() != locals_.size()) {
    return Status(Code::kCorrupt, "the epoch lacks a rank of this node");
  }
  node_.engine.add_job(std::move(spec), [weak = weak_from_this()](const Status& status) {
    if (const auto member = weak.lock()) {
      member->started(status);
    }
  });
  return ok_status();
}

void Member::started(const Status& status) {
  if (over()) {
    return;
  }
  if (status.ok()) {
    send({{"type", "ready"}});
  } else {
    report(status);
  }
}

Status Member::go() {
  if (state_ != State::kStarting) {
    return ok_status();  // it crossed the report of a failure
  }
  state_ = State::kRunning;
  Joined joined;
  joined.local_ranks = epoch_->nodes[epoch_->index].ranks;
  joined.nodes = static_cast<uint32_t>(epoch_->nodes.size());
  for (auto& [rank, local] : locals_) {
    if (local.reply) {
      joined.session = local.session;  // the engine keeps it alive from here on
      const auto reply = std::move(local.reply);
      local.reply = nullptr;
      reply(joined);
    }
  }
  return ok_status();
}

Status Member::who_misses(const Json& document) {
  Fields fields(document);
  const auto query = fields.number("query", 1, UINT64_MAX);
  const auto bucket = fields.number<uint32_t>("bucket", 0, UINT32_MAX);
  const auto sequence = fields.number("sequence", 0, UINT64_MAX);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("who_misses"));
  node_.engine.missing_ranks(job_, bucket, sequence,
                             [query, weak = weak_from_this()](const std::vector<uint32_t>& ranks) {
                               if (const auto self = weak.lock()) {
                                 self->send({{"type", "misses"}, {"query", query}, {"missing", ranks}});
                               }
                             });
  return ok_status();
}

Status Member::rank_left(const Json& document) {
  const Result<RankLeft> left = read_left(document);
  GRADWIRE_RETURN_IF_ERROR(left.status());
  if (left->rank >= epoch_->world) {
    return Status(Code::kCorrupt, "rank_left: there is no rank " + std::to_string(left->rank));
  }
  std::vector<engine::BucketSequence> last;
  for (const auto& [bucket, sequence] : left->last) {
    last.push_back({bucket, sequence});
  }
  node_.engine.note_rank_left(job_, left->rank, std::move(last));
  return ok_status();
}

}  // namespace gradwire::control
