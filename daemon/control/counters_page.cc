#include "daemon/control/counters_page.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <unordered_map>
#include <unordered_set>

#include "daemon/control/counters_records.h"

namespace gradwire::control {
namespace {

using namespace layout;  // NOLINT(google-build-using-namespace): this file writes that layout

constexpr uint64_t kKeepEndedNs = 60'000'000'000;
constexpr int kReadersMs = 500;  // a reader that tries the lock holds it for far less

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void fill_header(void* page, const std::string& node, const std::string& version,
                 const std::string& transport) {
  auto* header = new (page) CountersHeader{};
  header->magic = kCountersMagic;
  header->layout_version = kCountersVersion;
  header->header_bytes = sizeof(CountersHeader);
  header->jobs = kCounterJobs;
  header->ranks = kCounterRanks;
  header->buckets = kCounterBuckets;
  header->peers = kCounterPeers;
  header->job_bytes = sizeof(JobRecord);
  header->rank_bytes = sizeof(RankRecord);
  header->bucket_bytes = sizeof(BucketRecord);
  header->peer_bytes = sizeof(PeerRecord);
  header->pid = getpid();
  header->started_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  header->started_unix_ns = clock_ns(CLOCK_REALTIME);
  put(header->version, version);
  put(header->node, node);
  put(header->transport, transport);
}

}  // namespace

CountersPage::~CountersPage() = default;

Result<std::unique_ptr<CountersPage>> CountersPage::create(const std::string& runtime_dir,
                                                           const std::string& node,
                                                           const std::string& version,
                                                           const std::string& transport) {
  std::unique_ptr<CountersPage> page(new CountersPage(runtime_dir));
  page->path_ = transport;
  fill_header(page->file_.image(), node, version, transport);
  GRADWIRE_RETURN_IF_ERROR(page->file_.install(kReadersMs));
  return page;
}

CountersHeader* CountersPage::header() {
  return reinterpret_cast<CountersHeader*>(file_.image());
}

void CountersPage::flush() {
  job_table_.flush();
  rank_table_.flush();
  bucket_table_.flush();
  peer_table_.flush();
}

void CountersPage::set(std::atomic<uint64_t>& field, uint64_t value) {
  if (field.exchange(value, std::memory_order_relaxed) != value) {
    file_.write(static_cast<uint64_t>(reinterpret_cast<std::byte*>(&field) - file_.image()), sizeof(field));
  }
}

void CountersPage::heartbeat(uint64_t now_ns) {
  set(header()->heartbeat_ns, now_ns);
}

void CountersPage::set_kept(uint64_t bytes, uint64_t jobs) {
  set(header()->kept_bytes, bytes);
  set(header()->kept_jobs, jobs);
}

void CountersPage::mark_stopped() {
  set(header()->stopped_unix_ns, clock_ns(CLOCK_REALTIME));
}

int CountersPage::take(Slots& slots, Slots::Key key, uint32_t uid) {
  int slot = slots.take(key, uid);
  while (slot < 0 && make_room(slots, uid)) {
    slot = slots.take(key, uid);
  }
  if (slot < 0) {
    ++dropped_;
  }
  return slot;
}

bool CountersPage::make_room(Slots& slots, uint32_t uid) {
  uint64_t ended = 0;
  size_t most = 0;
  for (const auto& [job, when] : ended_) {
    const auto owner = slots.owner(job);
    if (owner && slots.held(*owner) > most) {
      ended = job;
      most = slots.held(*owner);
    }
  }
  if (ended != 0) {
    erase_job(ended);
    return true;
  }
  // Not where it would only turn the two round: they would take the place from each other for ever.
  const auto richest = slots.richest();
  if (!richest || *richest == uid || slots.held(*richest) <= slots.held(uid) + 1) {
    return false;
  }
  const Slots::Key key = slots.latest_of(*richest);
  if (&slots == &jobs_) {
    erase_job(key.first);
  } else {
    erase_record(slots, key);
  }
  return true;
}

void CountersPage::erase_record(Slots& slots, Slots::Key key) {
  const auto slot = static_cast<size_t>(slots.release(key));
  if (&slots == &jobs_) {
    job_table_.erase(slot);
  } else if (&slots == &ranks_) {
    rank_table_.erase(slot);
  } else if (&slots == &buckets_) {
    bucket_table_.erase(slot);
  } else {
    peer_table_.erase(slot);
  }
}

void CountersPage::erase_job(uint64_t job) {
  for (Slots* slots : {&jobs_, &ranks_, &buckets_, &peers_}) {
    for (const auto& [key, slot] : slots->of_job(job)) {
      erase_record(*slots, key);
    }
  }
  ended_.erase(job);
}

void CountersPage::publish(const std::vector<JobFacts>& jobs,
                           const std::vector<engine::JobSnapshot>& snapshots, uint64_t now_ns) {
  dropped_ = 0;
  std::vector<uint64_t> live;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!ended_.contains(jobs[i].id)) {
      live.push_back(jobs[i].id);
      write_job(jobs[i], snapshots[i]);
    }
  }
  // Jobs that never started leave nothing.
  std::vector<uint64_t> stale;
  for (const uint64_t job : jobs_.jobs()) {
    const auto ended = ended_.find(job);
    if (ended != ended_.end() ? now_ns - ended->second > kKeepEndedNs
                              : std::find(live.begin(), live.end(), job) == live.end()) {
      stale.push_back(job);
    }
  }
  for (const uint64_t job : stale) {
    erase_job(job);
  }
  flush();
  set(header()->records_dropped, dropped_);
  heartbeat(now_ns);
}

void CountersPage::publish_ended(const JobFacts& job, const engine::JobSnapshot& snapshot, uint64_t now_ns) {
  JobFacts last = job;
  last.ended_ns = job.ended_ns == 0 ? now_ns : job.ended_ns;
  write_job(last, snapshot);
  flush();
  if (jobs_.owner(job.id)) {
    ended_[job.id] = now_ns;
  }
}

void CountersPage::write_job(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  const int slot = take(jobs_, {job.id, 0}, job.identity.uid);
  if (slot < 0) {
    return;
  }
  Blank<JobRecord> blank;
  fill(job, snapshot, &blank.record);
  job_table_.put(static_cast<size_t>(slot), blank.record);
  write_ranks(job, snapshot);
  write_buckets(job, snapshot);
  write_peers(job);
}

void CountersPage::write_ranks(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  std::unordered_map<uint32_t, const engine::RankSnapshot*> seen;
  for (const engine::RankSnapshot& rank : snapshot.ranks) {
    seen[rank.rank] = &rank;
  }
  for (const JobFacts::Rank& rank : job.ranks) {
    const int slot = take(ranks_, {job.id, 1 + uint64_t{rank.rank}}, job.identity.uid);
    if (slot < 0) {
      continue;
    }
    Blank<RankRecord> blank;
    const auto found = seen.find(rank.rank);
    fill(job.id, rank, found == seen.end() ? nullptr : found->second, &blank.record);
    rank_table_.put(static_cast<size_t>(slot), blank.record);
  }
}

void CountersPage::write_buckets(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  std::unordered_set<uint64_t> there;
  for (const engine::BucketSnapshot& bucket : snapshot.buckets) {
    there.insert(1 + uint64_t{bucket.bucket});
  }
  for (const auto& [key, slot] : buckets_.of_job(job.id)) {
    if (!there.contains(key.second) && snapshot.id != 0) {
      erase_record(buckets_, key);
    }
  }
  for (const engine::BucketSnapshot& bucket : snapshot.buckets) {
    if (bucket.bucket == 0 && bucket.operations == 0) {
      continue;  // the barrier's, not used
    }
    const int slot = take(buckets_, {job.id, 1 + uint64_t{bucket.bucket}}, job.identity.uid);
    if (slot < 0) {
      continue;
    }
    Blank<BucketRecord> blank;
    fill(job.id, bucket, &blank.record);
    bucket_table_.put(static_cast<size_t>(slot), blank.record);
  }
}

void CountersPage::write_peers(const JobFacts& job) {
  uint64_t id = 0;
  for (const JobFacts::Peer& peer : job.peers) {
    const int slot = take(peers_, {job.id, ++id}, job.identity.uid);
    if (slot < 0) {
      continue;
    }
    Blank<PeerRecord> blank;
    fill(job.id, id, peer, path_, &blank.record);
    peer_table_.put(static_cast<size_t>(slot), blank.record);
  }
}

}  // namespace gradwire::control
