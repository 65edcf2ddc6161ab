// The ring's neighbours: who may come in, and the connections to them.
#include <algorithm>
#include <utility>

#include "daemon/engine/core.h"

namespace gradwire::engine {

// Transport::admit(), which has told whom it concerns where it cannot keep anybody out.
Status Core::admit(std::span<const std::string> hosts) {
  Status status = transport_.admit(hosts);
  return status.code() == Code::kUnsupported ? ok_status() : status;
}

// The hosts of all jobs' neighbours, and nobody else.
Status Core::admit_neighbours() {
  std::vector<std::string> hosts;
  for (const std::unique_ptr<Job>& job : jobs_) {
    hosts.insert(hosts.end(), job->spec.neighbour_hosts.begin(), job->spec.neighbour_hosts.end());
  }
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  if (hosts == admitted_) {
    return ok_status();
  }
  const Status status = admit(hosts);
  if (!status.ok()) {
    return status.with_context("letting the ring's neighbours in");
  }
  admitted_ = std::move(hosts);
  return ok_status();
}

Status Core::connect(Job& job) {
  Result<transport::PeerId> right = transport_.connect(job.spec.right_address);
  if (!right.ok()) {
    return right.status().with_context("connecting to " + node_label(job, job.right_node));
  }
  job.right.peer = *right;
  job.right.connected = true;
  if (job.right_node == job.left_node) {
    job.left_peer = job.right.peer;
    return ok_status();
  }
  Result<transport::PeerId> left = transport_.connect(job.spec.left_address);
  if (!left.ok()) {
    disconnect(job);
    return left.status().with_context("connecting to " + node_label(job, job.left_node));
  }
  job.left_peer = *left;
  job.left_connected = true;
  return ok_status();
}

void Core::disconnect(Job& job) {
  if (std::exchange(job.right.connected, false)) {
    transport_.disconnect(job.right.peer);
  }
  if (std::exchange(job.left_connected, false)) {
    transport_.disconnect(job.left_peer);
  }
}

}  // namespace gradwire::engine
