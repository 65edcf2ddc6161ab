#include "daemon/control/member.h"

namespace gradwire::control {
namespace {

bool names_as_gone(const std::string& cause, const std::string& node) {
  return cause.rfind(node, 0) == 0 && cause.find(" is gone: ") != std::string::npos;
}

}  // namespace

JobFacts Member::facts() const {
  JobFacts facts;
  facts.id = job_;
  facts.identity = identity_;
  facts.state = forming()                ? layout::JobState::kForming
                : state_ != State::kOver ? layout::JobState::kRunning
                : ended_                 ? layout::JobState::kEnded
                                         : layout::JobState::kAborted;
  facts.cause = over() && !ended_ ? cause_.message() : "";
  facts.ended_ns = static_cast<uint64_t>(ended_at_.count());
  facts.stall = stalls_.empty() || over() ? "" : stalls_.begin()->second;
  for (const auto& [rank, local] : locals_) {
    facts.world = local.join.world;
    facts.ranks.push_back({rank, local.join.pid,
                           local.left                      ? layout::RankState::kLeft
                           : over() || !local.gone.empty() ? layout::RankState::kGone
                                                           : layout::RankState::kAttached});
  }
  if (!epoch_) {
    return facts;
  }
  facts.epoch = epoch_->counter;
  facts.world = epoch_->world;
  facts.nodes = static_cast<uint32_t>(epoch_->nodes.size());
  facts.node_index = epoch_->index;
  for (uint32_t index = 0; index < epoch_->nodes.size(); ++index) {
    const EpochNode& node = epoch_->nodes[index];
    if (index == epoch_->index) {
      continue;
    }
    JobFacts::Peer peer{node.name,
                        node.instance,
                        list_ranks(node.ranks),
                        node.control_address,
                        over() ? layout::PeerState::kGone : layout::PeerState::kUp,
                        0,
                        index};
    if (over() && !ended_ && names_as_gone(cause_.message(), describe_node(node.name, node.ranks))) {
      peer.state = layout::PeerState::kLost;
    }
    if (node.instance == coordinator_.instance && link_) {
      peer.heartbeat_ns = liveness_ ? static_cast<uint64_t>(liveness_->last_heard().count()) : 0;
    }
    facts.peers.push_back(std::move(peer));
  }
  return facts;
}

}  // namespace gradwire::control
