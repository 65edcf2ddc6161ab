#include "daemon/control/counters_page.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>

namespace gradwire::control {
namespace {

using namespace layout;  // NOLINT(google-build-using-namespace): this file writes that layout

constexpr uint64_t kKeepEndedNs = 600'000'000'000;

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

// Publishes `record` under the sequence lock of `*place`. Every store is a release: a reader that sees one of
// them with an acquire load also sees the odd version before it, and so finds that the version has changed.
template <typename Record>
void store(Record* place, const Record& record) {
  static_assert(sizeof(Record) % sizeof(uint64_t) == 0 && offsetof(Record, version) == 0);
  const uint32_t version = place->version.load(std::memory_order_relaxed);  // only this thread writes it
  place->version.store(version + 1, std::memory_order_release);
  const auto* from = reinterpret_cast<const unsigned char*>(&record);
  auto* to = reinterpret_cast<unsigned char*>(place);
  uint32_t second;  // the half word beside the version
  std::memcpy(&second, from + 4, sizeof(second));
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to + 4)).store(second, std::memory_order_release);
  for (size_t offset = sizeof(uint64_t); offset < sizeof(Record); offset += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, from + offset, sizeof(word));
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to + offset))
        .store(word, std::memory_order_release);
  }
  place->version.store(version + 2, std::memory_order_release);
}

Status failed(const std::string& path, const char* call) {
  return Status(Code::kUnavailable,
                "the counters page " + path + " cannot be made: " + call + ": " + std::strerror(errno));
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

CountersPage::CountersPage(wire::UniqueFd fd, void* page) : fd_(std::move(fd)), page_(page) {}

CountersPage::~CountersPage() {
  munmap(page_, kCountersBytes);
}

Result<std::unique_ptr<CountersPage>> CountersPage::create(const std::string& runtime_dir,
                                                           const std::string& node,
                                                           const std::string& version,
                                                           const std::string& transport) {
  const std::string path = runtime_dir + "/" + kCountersFile;
  const std::string temporary = path + ".new";
  unlink(temporary.c_str());
  wire::UniqueFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) {
    return failed(path, "open");
  }
  if (posix_fallocate(fd.get(), 0, static_cast<off_t>(kCountersBytes)) != 0) {
    return failed(path, "posix_fallocate");
  }
  void* memory =
      mmap(nullptr, kCountersBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return failed(path, "mmap");
  }
  std::unique_ptr<CountersPage> page(new CountersPage(std::move(fd), memory));
  page->path_ = transport;
  fill_header(memory, node, version, transport);
  if (fchmod(page->fd_.get(), 0644) != 0 || flock(page->fd_.get(), LOCK_EX | LOCK_NB) != 0 ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    return failed(path, "flock or rename");
  }
  return page;
}

CountersHeader* CountersPage::header() const {
  return static_cast<CountersHeader*>(page_);
}

template <typename Record>
Record* CountersPage::table(uint64_t offset) const {
  return reinterpret_cast<Record*>(static_cast<unsigned char*>(page_) + offset);
}

void CountersPage::heartbeat(uint64_t now_ns) {
  header()->heartbeat_ns.store(now_ns, std::memory_order_relaxed);  // one value: nothing to pair with
}

void CountersPage::count_dropped() {
  header()->records_dropped.fetch_add(1, std::memory_order_relaxed);
}

int CountersPage::take(Slots& slots, Slots::Key key) {
  int slot = slots.take(key);
  while (slot < 0 && make_room()) {
    slot = slots.take(key);
  }
  if (slot < 0) {
    count_dropped();
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
  const auto clear = [job]<typename Record>(Slots& slots, Record* records) {
    for (const auto& [key, slot] : slots.of_job(job)) {
      store(&records[slot], Record{});
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
  heartbeat(now_ns);
}

void CountersPage::publish_ended(const JobFacts& job, const engine::JobSnapshot& snapshot, uint64_t now_ns) {
  write_job(job, snapshot);
  ended_[job.id] = now_ns;
}

void CountersPage::write_job(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  const int slot = take(jobs_, {job.id, 0});
  if (slot < 0) {
    return;
  }
  JobRecord record{};
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
    RankRecord record{};
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
      }
    }
    store(&table<RankRecord>(kRanksAt)[slot], record);
  }
}

void CountersPage::write_buckets(const JobFacts& job, const engine::JobSnapshot& snapshot) {
  auto* records = table<BucketRecord>(kBucketsAt);
  for (const auto& [key, slot] : buckets_.of_job(job.id)) {
    const bool there =
        std::any_of(snapshot.buckets.begin(), snapshot.buckets.end(),
                    [id = key.second](const auto& bucket) { return 1 + uint64_t{bucket.bucket} == id; });
    if (!there && snapshot.id != 0) {
      store(&records[slot], BucketRecord{});
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
    BucketRecord record{};
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
    PeerRecord record{};
    record.state = static_cast<uint32_t>(peer.state);
    record.id = id;
    record.job = job.id;
    put(record.node, peer.node);
    put(record.ranks, peer.ranks);
    put(record.address, peer.address);
    put(record.path, path_);
    record.heartbeat_ns = peer.heartbeat_ns;
    store(&table<PeerRecord>(kPeersAt)[slot], record);
  }
}

}  // namespace gradwire::control
