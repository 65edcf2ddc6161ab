#include "tools/status_words.h"

#include <algorithm>

#include "client/layout/session_layout.h"

namespace gradwire::tools {
namespace {

constexpr std::string_view kJobStates[] = {"free", "forming", "running", "aborted", "ended"};
constexpr std::string_view kPhases[] = {"idle", "gathering", "reducing", "distributing",
                                        "done", "granting",  "held"};
constexpr std::string_view kRankStates[] = {"unknown", "attached", "gone", "left"};
constexpr std::string_view kPeerStates[] = {"unknown", "connecting", "up", "lost", "gone"};
constexpr std::string_view kOperations[] = {"",        "allreduce", "broadcast",
                                            "barrier", "allgather", "reduce_scatter"};
static_assert(layout::kOpAllreduce == 1 && layout::kOpBroadcast == 2 && layout::kOpBarrier == 3 &&
              layout::kOpAllgather == 4 && layout::kOpReduceScatter == 5);

struct Dtype {
  std::string_view name;
  uint64_t bytes;
};
constexpr Dtype kDtypes[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"float64", 8},
                             {"int32", 4},   {"int64", 8},   {"uint8", 1}};

template <size_t kCount>
std::string_view word(const std::string_view (&words)[kCount], uint32_t number) {
  return number < kCount ? words[number] : "unknown";
}

}  // namespace

std::string_view name_of(layout::JobState state) {
  return word(kJobStates, static_cast<uint32_t>(state));
}
std::string_view name_of(layout::BucketPhase phase) {
  return word(kPhases, static_cast<uint32_t>(phase));
}
std::string_view name_of(layout::RankState state) {
  return word(kRankStates, static_cast<uint32_t>(state));
}
std::string_view name_of(layout::PeerState state) {
  return word(kPeerStates, static_cast<uint32_t>(state));
}
std::string_view operation_name(uint32_t operation) {
  return word(kOperations, operation);
}
std::string_view dtype_name(uint32_t dtype) {
  return dtype < std::size(kDtypes) ? kDtypes[dtype].name : "unknown";
}
uint64_t dtype_bytes(uint32_t dtype) {
  return dtype < std::size(kDtypes) ? kDtypes[dtype].bytes : 0;
}

uint64_t bucket_bytes(const BucketCounters& bucket) {
  const uint64_t bytes = dtype_bytes(bucket.dtype);
  return bytes != 0 && bucket.elements > UINT64_MAX / bytes ? UINT64_MAX : bucket.elements * bytes;
}

const JobCounters* find_job(const CountersPage& page, uint64_t id) {
  const auto found = std::ranges::find(page.jobs, id, &JobCounters::id);
  return found == page.jobs.end() ? nullptr : &*found;
}

bool is_over(const CountersPage& page, uint64_t job) {
  const JobCounters* const found = find_job(page, job);
  return found != nullptr &&
         (found->state == layout::JobState::kEnded || found->state == layout::JobState::kAborted);
}

std::string node_name(const CountersPage& page, uint64_t job, uint32_t node_index) {
  for (const JobCounters& known : page.jobs) {
    if (known.id == job && known.node_index == node_index) {
      return page.node;
    }
  }
  for (const PeerCounters& peer : page.peers) {
    if (peer.job == job && peer.node_index == node_index) {
      return peer.node;
    }
  }
  return {};
}

std::string phase_sentence(const CountersPage& page, const BucketCounters& bucket) {
  std::string node;
  if (bucket.waits_for_node != UINT32_MAX) {
    const std::string name = node_name(page, bucket.job, bucket.waits_for_node);
    node = "node " + (name.empty() ? "number " + std::to_string(bucket.waits_for_node) : name);
  }
  const auto under_way = [&] {
    std::string out(name_of(bucket.phase));
    if (bucket.hops > 0) {
      out += ", hop " + std::to_string(uint64_t{bucket.hop} + 1) + " of " + std::to_string(bucket.hops);
    }
    return node.empty() ? out : out + ", waits for " + node;
  };
  switch (bucket.phase) {
    case layout::BucketPhase::kGathering:
      return "gathering, waits for " + std::to_string(bucket.missing_ranks) +
             (bucket.missing_ranks == 1 ? " local rank" : " local ranks");
    case layout::BucketPhase::kGranting:
      return node.empty() ? "waits for the next node to start" : "waits for " + node + " to start";
    case layout::BucketPhase::kHeld:
      return "held by a change of plan";
    case layout::BucketPhase::kReducing:
    case layout::BucketPhase::kDistributing:
      return under_way();
    default:
      return std::string(name_of(bucket.phase));
  }
}

}  // namespace gradwire::tools
