#include "daemon/control/pasts.h"

#include <algorithm>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;  // of all jobs' buckets together
constexpr size_t kMaxJobs = 4096;

}  // namespace

void PastStore::remember(const JobIdentity& job, Past past) {
  if (const auto found = pending_.find(job); found != pending_.end() && --found->second == 0) {
    pending_.erase(found);
  }
  forget(job);
  sweep();
  if (ttl_.count() > 0) {
    if (const size_t left_out = limit_past(&past); left_out > 0) {
      log_warning(
          "past_too_long",
          {{"job", job.name},
           {"cause", "the names of " + std::to_string(left_out) +
                         " buckets do not fit into one document: gw_previous_epoch does not know them"}});
    }
    Entry entry{std::move(past), scheduler_.now() + ttl_, sizeof(Entry)};
    for (const Past::Bucket& bucket : entry.past.buckets) {
      entry.bytes += sizeof(bucket) + bucket.name.size();
    }
    bytes_ += entry.bytes;
    pasts_.emplace(job, std::move(entry));
  }
  while (bytes_ > kMaxBytes || pasts_.size() > kMaxJobs) {
    drop_one();
  }
  if (!pending_.contains(job)) {
    const auto waiting = waiting_.extract(job);
    for (size_t i = 0; !waiting.empty() && i < waiting.mapped().size(); ++i) {
      waiting.mapped()[i]();
    }
  }
}

// Of the user who has most: nobody's failing jobs make another forget.
void PastStore::drop_one() {
  std::map<uint32_t, size_t> held;
  for (const auto& [job, entry] : pasts_) {
    held[job.uid] += bytes_ > kMaxBytes ? entry.bytes : 1;
  }
  const uint32_t uid = std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) {
                         return a.second < b.second;
                       })->first;
  auto oldest = pasts_.end();
  for (auto each = pasts_.begin(); each != pasts_.end(); ++each) {
    if (each->first.uid == uid && (oldest == pasts_.end() || each->second.until < oldest->second.until)) {
      oldest = each;
    }
  }
  bytes_ -= oldest->second.bytes;
  pasts_.erase(oldest);
}

void PastStore::forget(const JobIdentity& job) {
  if (const auto found = pasts_.find(job); found != pasts_.end()) {
    bytes_ -= found->second.bytes;
    pasts_.erase(found);
  }
}

void PastStore::when_known(const JobIdentity& job, Work work) {
  if (pending_.contains(job)) {
    waiting_[job].push_back(std::move(work));
  } else {
    work();
  }
}

const Past* PastStore::find(const JobIdentity& job) {
  sweep();
  const auto found = pasts_.find(job);
  return found == pasts_.end() ? nullptr : &found->second.past;
}

void PastStore::sweep() {
  std::erase_if(pasts_, [this](const auto& entry) {
    const bool expired = scheduler_.now() >= entry.second.until;
    bytes_ -= expired ? entry.second.bytes : 0;
    return expired;
  });
}

Past merge_pasts(const std::vector<NodePast>& nodes, uint64_t last_epoch) {
  Past merged;
  merged.epoch = last_epoch;
  for (const NodePast& node : nodes) {
    merged.epoch = std::max(merged.epoch, node.past != nullptr ? node.past->epoch : 0);
  }
  struct Progress {
    uint64_t lowest = UINT64_MAX, highest = 0;
    uint32_t rank = UINT32_MAX;  // lowest on a node that completed `highest`
    size_t nodes = 0;
  };
  std::map<std::string_view, Progress> buckets;
  size_t known = 0;
  for (const NodePast& node : nodes) {
    if (node.past == nullptr || node.past->epoch != merged.epoch) {
      ++merged.unknown_nodes;
      continue;
    }
    ++known;
    for (const Past::Bucket& said : node.past->buckets) {
      Progress& bucket = buckets[said.name];
      ++bucket.nodes;
      bucket.lowest = std::min(bucket.lowest, said.highest);
      if (said.highest > bucket.highest) {
        bucket.highest = said.highest;
        bucket.rank = node.lowest_rank;
      } else if (said.highest == bucket.highest) {
        bucket.rank = std::min(bucket.rank, node.lowest_rank);
      }
    }
  }
  for (const auto& [name, bucket] : buckets) {
    // A node that does not know the bucket has completed nothing of it.
    merged.buckets.push_back({std::string(name), bucket.nodes < known ? 0 : bucket.lowest, bucket.highest,
                              bucket.highest == 0 ? -1 : static_cast<int32_t>(bucket.rank)});
  }
  limit_past(&merged);
  return merged;
}

}  // namespace gradwire::control
