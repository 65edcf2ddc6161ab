// PastStore: how far the failed epochs of this node's jobs came, for when the jobs come back. And what the
// coordinator makes of the nodes' answers.
//
// On the control thread; no I/O.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "daemon/control/documents.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

class PastStore {
 public:
  PastStore(Scheduler& scheduler, Nanoseconds ttl) : scheduler_(scheduler), ttl_(ttl) {}

  // An epoch has failed, and what it completed will be told by remember().
  void expect(const JobIdentity& job) { ++pending_[job]; }
  void remember(const JobIdentity& job, Past past);
  // An orderly end, or the training starts anew.
  void forget(const JobIdentity& job);
  // At once, or as soon as what is expected of that job is there.
  void when_known(const JobIdentity& job, Work work);
  // nullptr: nothing is known. Valid until the next call.
  const Past* find(const JobIdentity& job);

 private:
  struct Entry {
    Past past;
    Nanoseconds until{};
    size_t bytes = 0;
  };
  void sweep();
  void drop_one();

  Scheduler& scheduler_;
  Nanoseconds ttl_;
  size_t bytes_ = 0;
  std::map<JobIdentity, Entry> pasts_;
  std::map<JobIdentity, unsigned> pending_;
  std::map<JobIdentity, std::vector<Work>> waiting_;
};

struct NodePast {
  const Past* past = nullptr;  // nullptr: the node said nothing
  uint32_t lowest_rank = 0;    // of the node in the epoch that begins
};
// Only pasts of the highest epoch count, `last_epoch` included (0: none is known): the other nodes are
// unknown.
Past merge_pasts(const std::vector<NodePast>& nodes, uint64_t last_epoch);

}  // namespace gradwire::control
