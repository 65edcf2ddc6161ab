// From the first rank to the epoch's start.
#include <algorithm>

#include "daemon/control/coordinated_job.h"
#include "daemon/control/job_planner.h"
#include "daemon/control/log.h"
#include "daemon/control/pasts.h"

namespace gradwire::control {

void CoordinatedJob::attach(NodeKey key, LinkPtr link, const NodeInfo& info) {
  Node& node = nodes_[key];
  node.link = std::move(link);
  node.info = info;
}

void CoordinatedJob::join(NodeKey key, const RankJoin& join) {
  Node& node = nodes_.at(key);
  const auto refuse = [&](const Status& why) {
    Json document = failure_document("join_refused", why);
    document["rank"] = join.rank;
    node.link->send(document);
    if (!owns(key, join.rank)) {
      node.refused.insert(join.rank);
    }
  };
  if (join.rank >= join.world) {
    refuse(Status(Code::kInvalidArgument, "rank " + std::to_string(join.rank) +
                                              " is not below the world size " + std::to_string(join.world)));
    return;
  }
  if (const auto other = place(join.rank)) {
    refuse(Status(Code::kAlreadyExists, "rank " + std::to_string(join.rank) + " of " + describe(identity_) +
                                            " joined on node " + node.info.name + " (pid " +
                                            std::to_string(join.pid) + ") and is already there on " +
                                            *other));
    return;
  }
  const auto self = shared_from_this();
  const uint32_t first_rank = rank_node_.empty() ? join.rank : rank_node_.begin()->first;
  const std::string first_place = place_of(first_rank);
  rank_node_[join.rank] = key;
  node.ranks[join.rank] = Rank{join.pid, join.world, join.fresh};
  node.refused.erase(join.rank);
  if (rank_node_.size() == 1) {
    world_ = join.world;
  } else if (join.world != world_) {
    abort(Status(Code::kMismatch, "the ranks of " + describe(identity_) + " disagree on the world size: " +
                                      std::to_string(world_) + " on " + first_place + " and " +
                                      std::to_string(join.world) + " on " + place_of(join.rank)));
    return;
  }
  const Nanoseconds timeout =
      std::min<Nanoseconds>(std::chrono::milliseconds(join.timeout_ms), options_.operation_timeout);
  const Nanoseconds now = scheduler_.now();
  if (!deadline_.running() || now + timeout < join_deadline_) {
    join_deadline_ = now + timeout;
    deadline_.start(timeout, [this] { expire(); });
  }
  if (rank_node_.size() == world_) {
    start_epoch();
  } else if (!patience_.running() && !told_missing_ && options_.stall_warning.count() > 0) {
    patience_.start(options_.stall_warning, [this] { tell_missing(); });
  }
}

std::string CoordinatedJob::missing_ranks() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (!rank_node_.contains(rank)) {
      missing.push_back(rank);
    }
  }
  return (missing.size() == 1 ? "rank " : "ranks ") + list_ranks(missing) + " of " + std::to_string(world_);
}

std::string CoordinatedJob::present_ranks() const {
  std::string present;
  for (const auto& [key, node] : nodes_) {
    if (!node.ranks.empty()) {
      present += (present.empty() ? "" : ", ") + describe_node(node.info.name, ranks_of(node));
    }
  }
  return present;
}

void CoordinatedJob::tell_missing() {
  told_missing_ = true;
  log_warning("ranks_missing", {{"job", identity_.name},
                                {"run", identity_.run_id},
                                {"missing", missing_ranks()},
                                {"present", present_ranks()}});
}

void CoordinatedJob::expire() {
  if (state_ == State::kForming) {
    const std::string refusals = hooks_.refusals(forming_since_);
    abort(Status(Code::kDeadlineExceeded, describe(identity_) + ": " + missing_ranks() +
                                              " did not join in time; there are " + present_ranks() +
                                              (refusals.empty() ? "" : "; refused meanwhile: " + refusals)));
    return;
  }
  std::string silent;
  for (const auto& [key, node] : nodes_) {
    if (!node.ready) {
      silent += (silent.empty() ? "" : ", ") + describe_node(node.info.name, ranks_of(node));
    }
  }
  abort(Status(Code::kDeadlineExceeded, describe(identity_) + " did not start in time on " + silent));
}

void CoordinatedJob::start_epoch() {
  std::erase_if(nodes_, [](const auto& entry) { return entry.second.ranks.empty(); });
  const NodeInfo& first = nodes_.begin()->second.info;
  for (const auto& [key, node] : nodes_) {
    order_.push_back(key);
    if (node.info.max_payload != first.max_payload) {
      abort(Status(Code::kMismatch, "transport.segment differs: messages carry " +
                                        std::to_string(first.max_payload) + " bytes on node " + first.name +
                                        " and " + std::to_string(node.info.max_payload) + " on node " +
                                        node.info.name + "; configure the same on all nodes"));
      return;
    }
  }
  std::sort(order_.begin(), order_.end(), [this](NodeKey a, NodeKey b) {
    return nodes_.at(a).ranks.begin()->first < nodes_.at(b).ranks.begin()->first;
  });
  state_ = State::kConnecting;
  patience_.stop();
  for (uint32_t index = 0; index < order_.size(); ++index) {
    nodes_.at(order_[index]).index = index;
  }
  Epoch epoch;
  epoch.fresh = fresh();
  epoch.past = merged_past();
  counter_ = epoch.past ? epoch.past->epoch + 1 : 1;
  epoch.key = options_.random(16);
  epoch.counter = counter_;
  epoch.world = world_;
  epoch.max_payload = first.max_payload;
  for (const NodeKey key : order_) {
    const Node& node = nodes_.at(key);
    epoch.nodes.push_back({node.info.name, node.info.instance, node.info.transport_address,
                           node.info.control_address, node.info.data_hosts, ranks_of(node)});
  }
  make_parts();
  hooks_.formed(*this);
  deadline_.start(options_.operation_timeout, [this] { expire(); });
  for (const NodeKey key : order_) {
    Node& node = nodes_.at(key);
    epoch.index = node.index;
    node.link->send(epoch_document(epoch));
    node.past.reset();
  }
}

Status CoordinatedJob::past(Node& node, const Json& document) {
  Result<Past> past = read_node_past(document);
  GRADWIRE_RETURN_IF_ERROR(past.status());
  if (state_ == State::kForming) {
    node.past = std::move(*past);
  }
  return ok_status();
}

std::optional<Past> CoordinatedJob::merged_past() const {
  std::vector<NodePast> pasts;
  for (const NodeKey key : order_) {
    const Node& node = nodes_.at(key);
    pasts.push_back({node.past ? &*node.past : nullptr, node.ranks.begin()->first});
  }
  Past merged = merge_pasts(pasts, hooks_.last_epoch());
  if (fresh()) {  // of all that is known only the number counts
    merged.unknown_nodes = static_cast<uint32_t>(order_.size());
    merged.buckets.clear();
  }
  return merged.epoch == 0 ? std::nullopt : std::optional<Past>(std::move(merged));
}

bool CoordinatedJob::fresh() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
    const auto& ranks = node.second.ranks;
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.second.fresh; });
  });
}

void CoordinatedJob::make_parts() {
  const auto nodes = static_cast<uint32_t>(order_.size());
  const auto send = [this](uint32_t index, const Json& document) {
    nodes_.at(order_[index]).link->send(document);
  };
  const auto all_places = [this](const std::vector<uint32_t>& ranks) { return places(ranks); };
  rounds_ = std::make_unique<BucketRounds>(
      scheduler_, options_.operation_timeout, world_, nodes,
      BucketRounds::Hooks{send, [this](uint32_t rank) { return place_of(rank); },
                          [this](uint32_t rank) { return nodes_.at(rank_node_.at(rank)).index; }, all_places,
                          [this](uint32_t bucket, const Manifest& manifest,
                                 const std::function<void(const Json&, const Json&)>& answer) {
                            planner_->plan(bucket, manifest, [answer](const Json& policy, const Plan& plan) {
                              answer(policy, plan_to_json(plan));
                            });
                          }});
  planner_ = std::make_unique<JobPlanner>(
      scheduler_, options_.operation_timeout, nodes, nodes_.begin()->second.info.max_payload,
      JobPlanner::Hooks{send, [this] { return options_.policy; }, [this] { return options_.plan; },
                        [this](uint32_t bucket) { return rounds_->label(bucket); }});
  stalls_ = std::make_unique<StallWatch>(
      scheduler_, options_.peer_timeout, nodes,
      StallWatch::Hooks{
          send, all_places, [this](uint32_t index) { return node_text(index); },
          [this](const StallReport& report, const std::string& sentence) { verdict(report, sentence); }});
}

}  // namespace gradwire::control
