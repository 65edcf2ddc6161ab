// The ways to other nodes: who may come in, and the connections.
#include <algorithm>
#include <utility>

#include "daemon/engine/core.h"

namespace gradwire::engine {

// Transport::admit(), which has told whom it concerns where it cannot keep anybody out.
Status Core::admit(std::span<const std::string> hosts) {
  Status status = transport_.admit(hosts);
  return status.code() == Code::kUnsupported ? ok_status() : status;
}

// The hosts of those that all jobs' nodes hear from, and nobody else.
Status Core::admit_members() {
  std::vector<std::string> hosts;
  for (const std::unique_ptr<Job>& job : jobs_) {
    for (const uint32_t node : heard(*job)) {
      const std::vector<std::string>& of_node = job->spec.members[node].hosts;
      hosts.insert(hosts.end(), of_node.begin(), of_node.end());
    }
  }
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  if (hosts == admitted_) {
    return ok_status();
  }
  const Status status = admit(hosts);
  if (!status.ok()) {
    return status.with_context("letting the job's other nodes in");
  }
  admitted_ = std::move(hosts);
  return ok_status();
}

// For the job's direct buckets. Also when these are gone: connections to all are open.
Status Core::admit_all(Job& job) {
  if (std::exchange(job.any_direct, true)) {
    return ok_status();
  }
  Status status = admit_members();
  job.any_direct = status.ok();
  return status;
}

// The ring's neighbours, or all others.
std::vector<uint32_t> Core::heard(const Job& job) {
  std::vector<uint32_t> nodes;
  for (uint32_t node = 0; node < job.spec.nodes; ++node) {
    const bool neighbour = node == job.left_node || node == job.right_node;
    if (node != job.spec.node_index && (neighbour || job.any_direct)) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

// To the ring's neighbours, and to all others where the operation is direct.
Status Core::connect(Job& job, bool direct) {
  for (Link& link : job.links) {
    const bool neighbour = link.node == job.left_node || link.node == job.right_node;
    if (link.node == job.spec.node_index || link.connected || !(neighbour || direct)) {
      continue;
    }
    const Result<transport::PeerId> peer = transport_.connect(job.spec.members[link.node].address);
    if (!peer.ok()) {
      return peer.status().with_context("connecting to " + node_label(job, link.node));
    }
    link.peer = *peer;
    link.connected = true;
  }
  return ok_status();
}

void Core::disconnect(Job& job) {
  for (Link& link : job.links) {
    if (std::exchange(link.connected, false)) {
      transport_.disconnect(link.peer);
    }
  }
}

}  // namespace gradwire::engine
