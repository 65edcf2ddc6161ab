#include "daemon/control/coordinated_job.h"

#include <algorithm>

#include "daemon/control/job_planner.h"
#include "daemon/control/log.h"

namespace gradwire::control {

CoordinatedJob::CoordinatedJob(Scheduler& scheduler, const CoordinatorOptions& options, JobIdentity identity,
                               Hooks hooks)
    : scheduler_(scheduler),
      options_(options),
      identity_(std::move(identity)),
      hooks_(std::move(hooks)),
      forming_since_(scheduler.now()),
      deadline_(scheduler),
      patience_(scheduler),
      grace_(scheduler) {}

CoordinatedJob::~CoordinatedJob() = default;

std::vector<uint32_t> CoordinatedJob::ranks_of(const Node& node) const {
  std::vector<uint32_t> ranks;
  for (const auto& entry : node.ranks) {
    ranks.push_back(entry.first);
  }
  return ranks;
}

std::optional<std::string> CoordinatedJob::place(uint32_t rank) const {
  const auto found = rank_node_.find(rank);
  if (found == rank_node_.end() || left_.contains(rank)) {
    return std::nullopt;
  }
  const Node& node = nodes_.at(found->second);
  return "node " + node.info.name + " (pid " + std::to_string(node.ranks.at(rank).pid) + ")";
}

bool CoordinatedJob::is_at(uint32_t rank, const std::string& instance) const {
  const auto found = rank_node_.find(rank);
  return found != rank_node_.end() && nodes_.at(found->second).info.instance == instance;
}

std::string CoordinatedJob::place_of(uint32_t rank) const {
  const auto found = rank_node_.find(rank);
  const std::string text = "rank " + std::to_string(rank);
  return found == rank_node_.end() ? text : text + " (node " + nodes_.at(found->second).info.name + ")";
}

std::string CoordinatedJob::places(const std::vector<uint32_t>& ranks) const {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + place_of(ranks[i]);
  }
  return ranks.size() > kShown ? text + " and " + std::to_string(ranks.size() - kShown) + " more" : text;
}

bool CoordinatedJob::owns(NodeKey key, uint32_t rank) const {
  const auto found = rank_node_.find(rank);
  return found != rank_node_.end() && found->second == key;
}

void CoordinatedJob::broadcast(const Json& document) {
  for (auto& [key, node] : nodes_) {
    node.link->send(document);
  }
}

void CoordinatedJob::node_ready(Node& node) {
  node.ready = true;
  const bool all =
      std::all_of(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.ready; });
  if (state_ == State::kConnecting && all) {
    state_ = State::kRunning;
    deadline_.stop();
    broadcast({{"type", "go"}});
    planner_->begin();
    hooks_.running(*this);
    log_info("job_formed", {{"job", identity_.name},
                            {"run", identity_.run_id},
                            {"epoch", std::to_string(counter_)},
                            {"world", std::to_string(world_)},
                            {"nodes", std::to_string(nodes_.size())}});
  }
}

Status CoordinatedJob::document(NodeKey key, const std::string& type, const Json& document) {
  const auto self = shared_from_this();  // the hooks may forget this job
  const auto found = nodes_.find(key);
  if (found == nodes_.end() || state_ == State::kOver) {
    return ok_status();  // crossed the epoch's end
  }
  Node& node = found->second;
  if (type == "rank_gone") {
    return rank_gone(key, document);
  }
  if (type == "stopping") {
    lost(key, read_failure(document));
    return ok_status();
  }
  if (type == "past") {
    return past(node, document);
  }
  if (state_ == State::kForming) {
    return Status(Code::kCorrupt, "a document '" + clean(type, 40) + "' before the job is complete");
  }
  if (type == "ready") {
    node_ready(node);
    return ok_status();
  }
  if (type == "failed") {
    suspect(node, read_failure(document));
    return ok_status();
  }
  if (type == "bucket") {
    return bucket(key, document);
  }
  if (type == "bucket_ready" || type == "bucket_failed") {
    Fields fields(document);
    const auto number = fields.number<uint32_t>("bucket", 1, UINT32_MAX);
    GRADWIRE_RETURN_IF_ERROR(fields.status());
    if (type == "bucket_ready") {
      rounds_->ready(node.index, number);
    } else {
      rounds_->failed(number, read_failure(document).with_context("node " + node.info.name));
      planner_->destroyed(number);
    }
    return ok_status();
  }
  if (type == "bucket_destroyed") {
    Fields fields(document);
    planner_->destroyed(fields.number<uint32_t>("bucket", 1, UINT32_MAX));
    return fields.status().with_context(type);
  }
  if (type == "stall") {
    return stall(document);
  }
  if (type == "moved_on") {
    return moved_on(document);
  }
  if (type == "beat") {
    return results(node, document);
  }
  if (type == "measured" || type == "plan_held" || type == "plan_failed" || type == "plan_changed") {
    return planner_->document(node.index, type, document);
  }
  if (type == "misses") {
    return stalls_->misses(node.index, document, world_);
  }
  if (type == "leave") {
    return rank_left(key, document);
  }
  return Status(Code::kCorrupt, "the type '" + clean(type, 40) + "' is unknown");
}

void CoordinatedJob::plan_options_changed() {
  if (planner_) {
    planner_->options_changed();
  }
}

Status CoordinatedJob::bucket(NodeKey key, const Json& document) {
  Fields fields(document);
  const auto rank = fields.number<uint32_t>("rank", 0, world_ - 1);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("bucket"));
  const Result<Manifest> manifest = read_manifest(document);
  GRADWIRE_RETURN_IF_ERROR(manifest.status());
  if (!owns(key, rank) || left_.contains(rank)) {
    return Status(Code::kCorrupt, "bucket: rank " + std::to_string(rank) + " is not a rank of that node");
  }
  rounds_->created(rank, *manifest);
  return ok_status();
}

Status CoordinatedJob::stall(const Json& document) {
  const Result<StallReport> report = read_stall(document);
  GRADWIRE_RETURN_IF_ERROR(report.status());
  stalls_->stalled(*report);
  return ok_status();
}

// Some node sees it move again: nobody needs to be told of it any more.
Status CoordinatedJob::moved_on(const Json& document) {
  const Result<OperationName> operation = read_operation(document);
  GRADWIRE_RETURN_IF_ERROR(operation.status().with_context("moved_on"));
  broadcast({{"type", "moved_on"}, {"bucket", operation->bucket}, {"sequence", operation->sequence}});
  return ok_status();
}

Status CoordinatedJob::results(const Node& node, const Json& document) {
  const Result<Results> results = read_results(document);
  GRADWIRE_RETURN_IF_ERROR(results.status());
  if (const auto difference = results_.reported(node.index, *results)) {
    const std::string bucket = rounds_->label(difference->bucket);
    const Status cause(Code::kCorrupt,
                       bucket + ", operation " + std::to_string(difference->sequence) + ": the result on " +
                           node_text(difference->node) + " differs from the one on " +
                           node_text(difference->other) +
                           ", so the ranks' parameters are not equal any more: go on from a checkpoint, and "
                           "test the memory of both machines");
    log_error("result_differs", {{"job", identity_.name},
                                 {"bucket", bucket},
                                 {"sequence", std::to_string(difference->sequence)},
                                 {"cause", cause.message()}});
    abort(cause);
  }
  return ok_status();
}

void CoordinatedJob::log_results() const {
  if (results_.compared() > 0) {
    log_info("results_compared", {{"job", identity_.name},
                                  {"run", identity_.run_id},
                                  {"epoch", std::to_string(counter_)},
                                  {"count", std::to_string(results_.compared())}});
  }
}

std::string CoordinatedJob::node_text(uint32_t index) const {
  const Node& node = nodes_.at(order_[index]);
  return describe_node(node.info.name, ranks_of(node));
}

void CoordinatedJob::verdict(const StallReport& report, const std::string& sentence) {
  if (report.deadline) {
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options_.operation_timeout);
    abort(Status(Code::kDeadlineExceeded, "operation_timeout (" +
                                              format_duration_ms(static_cast<uint64_t>(timeout.count())) +
                                              "): " + sentence));
    return;
  }
  log_warning("stall", {{"job", identity_.name}, {"what", sentence}});
  broadcast(
      {{"type", "stalled"}, {"bucket", report.bucket}, {"sequence", report.sequence}, {"message", sentence}});
}

Status CoordinatedJob::rank_left(NodeKey key, const Json& document) {
  const Result<RankLeft> left = read_left(document);
  GRADWIRE_RETURN_IF_ERROR(left.status());
  if (!owns(key, left->rank) || !left_.insert(left->rank).second) {
    return Status(Code::kCorrupt, "leave: rank " + std::to_string(left->rank) +
                                      " is not a rank of that node, or has left before");
  }
  broadcast(left_document("rank_left", *left));
  rounds_->rank_left(left->rank);
  planner_->rank_left();
  if (left_.size() == world_) {
    state_ = State::kOver;
    broadcast({{"type", "end"}});
    log_results();
    hooks_.over(*this, ok_status());
  }
  return ok_status();
}

Status CoordinatedJob::rank_gone(NodeKey key, const Json& document) {
  Fields fields(document);
  const auto rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  const std::string why = fields.text("why", 1, kMaxSentence);
  GRADWIRE_RETURN_IF_ERROR(fields.status().with_context("rank_gone"));
  Node& node = nodes_.at(key);
  if (!owns(key, rank)) {
    const bool refused = node.refused.erase(rank) != 0 || state_ == State::kForming;
    return refused ? ok_status() : Status(Code::kCorrupt, "rank_gone: not a rank of that node");
  }
  if (state_ == State::kForming) {
    rank_node_.erase(rank);
    node.ranks.erase(rank);
    rank_withdrawn();
    return ok_status();
  }
  if (!left_.contains(rank)) {
    lose(rank_gone_status(rank, node.info.name, why));
  }
  return ok_status();
}

void CoordinatedJob::suspect(const Node& node, const Status& cause) {
  if (grace_.running()) {
    return;
  }
  // A peer's death shows at its neighbours' data path first; who died is known a moment later.
  const Status sentence(cause.code(), "node " + node.info.name + ": " + cause.message());
  const Nanoseconds grace = std::min<Nanoseconds>(std::chrono::milliseconds(150), options_.peer_timeout / 8);
  grace_.start(grace, [this, sentence] { abort(sentence); });
}

void CoordinatedJob::lost(NodeKey key, const Status& why) {
  const auto found = nodes_.find(key);
  if (found == nodes_.end() || state_ == State::kOver) {
    return;
  }
  Node& node = found->second;
  if (state_ == State::kForming) {
    for (const auto& entry : node.ranks) {
      rank_node_.erase(entry.first);
    }
    nodes_.erase(found);
    rank_withdrawn();
    return;
  }
  lose(Status(Code::kAborted, describe_node(node.info.name, ranks_of(node)) + " is gone: " + why.message()));
}

void CoordinatedJob::rank_withdrawn() {
  if (rank_node_.empty()) {
    deadline_.stop();
    patience_.stop();
  }
  if (nodes_.empty()) {
    state_ = State::kOver;
    hooks_.over(*this, ok_status());
  }
}

void CoordinatedJob::refused(NodeKey key, uint32_t rank) {
  if (const auto found = nodes_.find(key); found != nodes_.end()) {
    found->second.refused.insert(rank);
  }
}

void CoordinatedJob::end(const Status& cause, bool again) {
  if (state_ == State::kOver) {
    return;
  }
  const auto self = shared_from_this();
  state_ = State::kOver;
  deadline_.stop();
  patience_.stop();
  grace_.stop();
  if (planner_) {
    planner_->stop();
  }
  if (!nodes_.empty()) {
    log_warning(again ? "job_start_withdrawn" : "job_aborted",
                {{"job", identity_.name}, {"run", identity_.run_id}, {"cause", cause.message()}});
  }
  log_results();
  Json document = failure_document("abort", cause);
  if (again) {
    document["again"] = true;
  }
  broadcast(document);
  hooks_.over(*this, cause);
}

}  // namespace gradwire::control
