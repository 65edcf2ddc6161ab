// What the coordinator says to a member.
#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/member.h"
#include "daemon/control/stall_watch.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxStalls = 4096;

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
    Fields fields(document);
    // `go` may have crossed the word of a death here: who lives on has not heard of it, and goes on waiting.
    const bool bereaved = std::any_of(locals_.begin(), locals_.end(),
                                      [](const auto& local) { return !local.second.gone.empty(); });
    finish(read_failure(document), epoch_ && !went_ && (fields.flag("again") || bereaved));
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
  if (type.starts_with("plan_")) {
    return buckets_->plan_document(type, document);
  }
  if (type == "measure") {
    return measure(document);
  }
  if (type == "who_misses") {
    return who_misses(document);
  }
  if (type == "stalled" || type == "moved_on") {
    return type == "stalled" ? stalled(document) : moved_on(document);
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
  MemberBuckets::JobFacts facts{
      job_,       identity_, static_cast<uint32_t>(epoch_->nodes.size()), epoch_->index, epoch_->max_payload,
      self.ranks, {}};
  facts.rank_node.resize(epoch_->world);
  for (uint32_t index = 0; index < facts.nodes; ++index) {
    for (const uint32_t rank : epoch_->nodes[index].ranks) {
      facts.rank_node[rank] = index;
    }
  }
  buckets_ = std::make_shared<MemberBuckets>(node_, facts, [this](const Json& each) { send(each); });
  for (const uint32_t rank : self.ranks) {
    const auto local = locals_.find(rank);
    if (local == locals_.end() || !local->second.gone.empty()) {
      // The coordinator hears of it and ends the epoch; this is for one that does not.
      const std::string why = local == locals_.end() ? "went away" : local->second.gone;
      failing_timer_.start(node_.peer_timeout,
                           [this, rank, why] { finish(rank_gone_status(rank, node_.self.name, why)); });
      return ok_status();
    }
  }
  refuse_surplus();
  auto spec = job_spec();
  if (!spec.ok()) {
    report(spec.status());
    return ok_status();
  }
  spec->rank_node = facts.rank_node;
  node_.engine.add_job(std::move(*spec), [weak = weak_from_this()](const Status& status) {
    if (const auto member = weak.lock()) {
      member->started(status);
    }
  });
  return ok_status();
}

// Ranks that joined here while the epoch was on its way, and are elsewhere in it.
void Member::refuse_surplus() {
  const std::vector<uint32_t>& ranks = epoch_->nodes[epoch_->index].ranks;
  std::map<uint32_t, Reply<Joined>> surplus;
  for (auto& [rank, local] : locals_) {
    if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
      surplus.emplace(rank, std::move(local.reply));
    }
  }
  for (const auto& [rank, reply] : surplus) {
    locals_.erase(rank);
    reply(too_late_status(rank, identity_));
  }
}

std::vector<std::string> Member::node_names() const {
  std::vector<std::string> names;
  for (size_t index = 0; epoch_ && index < epoch_->nodes.size(); ++index) {
    names.push_back(epoch_->nodes[index].name);
  }
  return names;
}

// Makes the sessions of the local ranks, too.
Result<engine::JobSpec> Member::job_spec() {
  const auto nodes = static_cast<uint32_t>(epoch_->nodes.size());
  engine::JobSpec spec;
  spec.id = job_;
  spec.name = identity_.name;
  spec.key = epoch_key(epoch_->key);
  spec.nodes = nodes;
  spec.node_index = epoch_->index;
  for (const EpochNode& node : epoch_->nodes) {
    spec.members.push_back({node.name, node.transport_address, node.data_hosts});
  }
  for (const uint32_t rank : epoch_->nodes[epoch_->index].ranks) {
    auto session =
        make_session_memory(rank, epoch_->world, ++node_.last_generation, node_.reaper, identity_.uid);
    GRADWIRE_RETURN_IF_ERROR(session.status());
    SharedMemory& memory = *(*session)->memory;
    memory.keep(node_.quotas->until_gone(memory.fd()->get(), identity_.uid, memory.bytes(), nullptr));
    locals_.at(rank).session = *session;
    engine::LocalRank engine_rank;
    engine_rank.rank = rank;
    engine_rank.session = (*session)->header();
    engine_rank.bell_fd = (*session)->bell();
    engine_rank.memory = *session;
    spec.local_ranks.push_back(std::move(engine_rank));
  }
  return spec;
}

void Member::started(const Status& status) {
  if (over()) {
    return;
  }
  // Whoever joins after a death must not find the dead one in his world: it goes only when this node is
  // ready.
  bury_the_dead();
  if (state_ != State::kStarting) {
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
  went_ = true;
  if (epoch_->fresh && node_.residuals) {
    node_.residuals->forget(identity_);
  }
  if (epoch_->fresh && node_.pasts) {
    node_.pasts->forget(identity_);
  }
  buckets_->begin();
  Joined joined;
  joined.local_ranks = epoch_->nodes[epoch_->index].ranks;
  joined.nodes = static_cast<uint32_t>(epoch_->nodes.size());
  joined.epoch = epoch_->counter;
  joined.past = std::exchange(epoch_->past, std::nullopt);
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
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("who_misses"));
  const Result<OperationName> operation = read_operation(document);
  GRADWIRE_RETURN_IF_ERROR(operation.status().with_context("who_misses"));
  node_.engine.inspect(job_, operation->bucket, operation->sequence,
                       [query, weak = weak_from_this()](const engine::OperationView& view) {
                         if (const auto self = weak.lock()) {
                           self->send({{"type", "misses"},
                                       {"query", query},
                                       {"missing", view.missing_ranks},
                                       {"phase", phase_text(engine::describe(view, self->node_names()))}});
                         }
                       });
  return ok_status();
}

Status Member::stalled(const Json& document) {
  const Result<OperationName> operation = read_operation(document);
  GRADWIRE_RETURN_IF_ERROR(operation.status().with_context("stalled"));
  const std::string sentence = read_failure(document).message();
  log_warning("stall", {{"job", identity_.name}, {"what", sentence}});
  if (stalls_.size() < kMaxStalls) {
    stalls_[{operation->bucket, operation->sequence}] = sentence;
  }
  return ok_status();
}

Status Member::moved_on(const Json& document) {
  const Result<OperationName> operation = read_operation(document);
  GRADWIRE_RETURN_IF_ERROR(operation.status().with_context("moved_on"));
  stalls_.erase({operation->bucket, operation->sequence});
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
