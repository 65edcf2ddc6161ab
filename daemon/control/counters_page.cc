#include "daemon/control/counters_page.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <unordered_set>

namespace gradwire::control {
namespace {

using namespace layout;  // NOLINT(google-build-using-namespace): this file writes that layout

constexpr uint64_t kKeepEndedNs = 60'000'000'000;
constexpr int kReadersMs = 500;  // a reader that tries the lock holds it for far less

constexpr uint64_t kJobsAt = sizeof(CountersHeader);
constexpr uint64_t kRanksAt = kJobsAt + kCounterJobs * sizeof(JobRecord);
constexpr uint64_t kBucketsAt = kRanksAt + kCounterRanks * sizeof(RankRecord);
constexpr uint64_t kPeersAt = kBucketsAt + kCounterBuckets * sizeof(BucketRecord);

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

template <size_t N>
void put(char (&field)[N], const std::string& text) {
  const size_t bytes = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), bytes);
}

// A record whose padding is zero, too: other users read the file, and equal records have equal bytes.
template <typename Record>
struct Blank {
  Blank() { std::memset(static_cast<void*>(&record), 0, sizeof(record)); }
  Record record;
};

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

template <typename Record>
Record* CountersPage::table(uint64_t offset) {
  return reinterpret_cast<Record*>(file_.image() + offset);
}

// The three system calls are the order: a reader that sees new bytes of the record sees the odd version, too,
// or an even one that differs from the one before.
template <typename Record>
void CountersPage::store(Record* place, const Record& record) {
  static_assert(offsetof(Record, version) == 0);
  constexpr size_t kLock = sizeof(record.version);
  auto* const to = reinterpret_cast<std::byte*>(place);
  const auto* const from = reinterpret_cast<const std::byte*>(&record);
  if (std::memcmp(to + kLock, from + kLock, sizeof(Record) - kLock) == 0) {
    return;
  }
  const auto at = static_cast<uint64_t>(to - file_.image());
  const uint32_t version = place->version.load(std::memory_order_relaxed);  // nobody else has the image
  place->version.store(version + 1, std::memory_order_relaxed);
  file_.write(at, kLock);
  std::memcpy(to + kLock, from + kLock, sizeof(Record) - kLock);
  file_.write(at + kLock, sizeof(Record) - kLock);
  place->version.store(version + 2, std::memory_order_relaxed);
  file_.write(at, kLock);
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

int CountersPage::take(Slots& slots, Slots::Key key) {
  int slot = slots.take(key);
  while (slot < 0 && make_room()) {
    slot = slots.take(key);
  }
  if (slot < 0) {
    ++dropped_;
  }
  return slot;
}

bool CountersPage::make_room() {
  if (ended_.empty()) {
    return false;
  }
  erase_job(ended_.begin()->first);
  return true;
}

void CountersPage::erase_job(uint64_t job) {
  const auto clear = [this, job]<typename Record>(Slots& slots, Record* records) {
    for (const auto& [key, slot] : slots.of_job(job)) {
      store(&records[slot], Blank<Record>().record);
      slots.release(key);
    }
  };
  clear(jobs_, table<JobRecord>(kJobsAt));
  clear(ranks_, table<RankRecord>(kRanksAt));
  clear(buckets_, table<BucketRecord>(kBucketsAt));
  clear(peers_, table<PeerRecord>(kPeersAt));
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
  for (const auto& [key, slot] : jobs_.all()) {
    const bool expired = ended_.contains(key.first) && now_ns - ended_.at(key.first) > kKeepEndedNs;
    const bool vanished =
        !ended_.contains(key.first) && std::find(live.begin(), live.end(), key.first) == live.end();
    if (expired || vanished) {
      stale.push_back(key.first);
    }
  }
  for (const uint64_t job : stale) {
    erase_job(job);
  }
  set(header()->records_dropped, dropped_);
  heartbeat(now_ns);
}

void CountersPage::publish_ended(const JobFacts& job, const engine::JobSnapshot& snapshot, uint64_t now_ns) {
  JobFacts last = job;
  last.ended_ns = job.ended_ns == 0 ? now_ns : job.ended_ns;
  write_job(last, snapshot);
  ended_[job.id] = now_ns;
}

void CountersPage::write_job(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  const int slot = take(jobs_, {job.id, 0});
  if (slot < 0) {
    return;
  }
  Blank<JobRecord> blank;
  JobRecord& record = blank.record;
  record.state = static_cast<uint32_t>(job.state);
  record.id = job.id;
  put(record.name, job.identity.name);
  put(record.run_id, job.identity.run_id);
  record.uid = job.identity.uid;
  record.world = job.world;
  record.nodes = job.nodes;
  record.node_index = job.node_index;
  record.epoch = job.epoch;
  record.operations = snapshot.operations;
  record.raw_bytes = snapshot.raw_bytes;
  record.payload_bytes = snapshot.payload_bytes;
  record.header_bytes = snapshot.header_bytes;
  put(record.cause, job.cause);
  record.ended_ns = job.ended_ns;
  put(record.stall, job.ended_ns == 0 ? job.stall : std::string());
  store(&table<JobRecord>(kJobsAt)[slot], record);
  write_ranks(job, snapshot);
  write_buckets(job, snapshot);
  write_peers(job);
}

void CountersPage::write_ranks(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  for (const JobFacts::Rank& rank : job.ranks) {
    const int slot = take(ranks_, {job.id, 1 + uint64_t{rank.rank}});
    if (slot < 0) {
      continue;
    }
    Blank<RankRecord> blank;
    RankRecord& record = blank.record;
    record.state = static_cast<uint32_t>(rank.state);
    record.id = 1 + uint64_t{rank.rank};
    record.job = job.id;
    record.rank = rank.rank;
    record.pid = rank.pid;
    for (const engine::RankSnapshot& each : snapshot.ranks) {
      if (each.rank == rank.rank) {
        record.submissions = each.submissions;
        record.late_total_ns = each.late_total_ns;
        record.late_max_ns = each.late_max_ns;
        record.late_count = each.late_count;
      }
    }
    store(&table<RankRecord>(kRanksAt)[slot], record);
  }
}

void CountersPage::write_buckets(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  auto* records = table<BucketRecord>(kBucketsAt);
  std::unordered_set<uint64_t> there;
  for (const engine::BucketSnapshot& bucket : snapshot.buckets) {
    there.insert(1 + uint64_t{bucket.bucket});
  }
  for (const auto& [key, slot] : buckets_.of_job(job.id)) {
    if (!there.contains(key.second) && snapshot.id != 0) {
      store(&records[slot], Blank<BucketRecord>().record);
      buckets_.release(key);
    }
  }
  for (const engine::BucketSnapshot& bucket : snapshot.buckets) {
    if (bucket.bucket == 0 && bucket.operations == 0) {
      continue;  // the barrier's, not used
    }
    const int slot = take(buckets_, {job.id, 1 + uint64_t{bucket.bucket}});
    if (slot < 0) {
      continue;
    }
    Blank<BucketRecord> blank;
    BucketRecord& record = blank.record;
    record.phase = static_cast<uint32_t>(bucket.phase);
    record.id = 1 + uint64_t{bucket.bucket};
    record.job = job.id;
    record.bucket = bucket.bucket;
    record.dtype = bucket.dtype;
    put(record.name, bucket.name);
    put(record.codec, bucket.codec);
    record.elements = bucket.elements;
    record.sequence = bucket.sequence;
    record.operations = bucket.operations;
    record.not_finite = bucket.not_finite;
    record.raw_bytes = bucket.raw_bytes;
    record.payload_bytes = bucket.payload_bytes;
    record.header_bytes = bucket.header_bytes;
    record.received_bytes = bucket.received_bytes;
    record.residual_bytes = bucket.residual_bytes;
    record.density = bucket.density;
    record.residual_norm = bucket.residual_norm;
    record.warm_stage = bucket.warm_stage;
    record.missing_ranks = bucket.missing_ranks;
    record.last_ns = bucket.last_ns;
    record.total_ns = bucket.total_ns;
    record.gather_total_ns = bucket.gather_total_ns;
    record.hop = bucket.hop;
    record.hops = bucket.hops;
    record.waits_for_node = bucket.waits_for_node;
    record.operation = bucket.operation;
    store(&records[slot], record);
  }
}

void CountersPage::write_peers(const JobFacts& job) {
  uint64_t id = 0;
  for (const JobFacts::Peer& peer : job.peers) {
    const int slot = take(peers_, {job.id, ++id});
    if (slot < 0) {
      continue;
    }
    Blank<PeerRecord> blank;
    PeerRecord& record = blank.record;
    record.state = static_cast<uint32_t>(peer.state);
    record.id = id;
    record.job = job.id;
    put(record.node, peer.node);
    put(record.ranks, peer.ranks);
    put(record.address, peer.address);
    put(record.path, path_);
    record.heartbeat_ns = peer.heartbeat_ns;
    record.node_index = peer.node_index;
    store(&table<PeerRecord>(kPeersAt)[slot], record);
  }
}

}  // namespace gradwire::control
