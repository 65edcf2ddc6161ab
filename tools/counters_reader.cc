#include "tools/counters_reader.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace gradwire::tools {
namespace {

// Tries per record before its copy counts as torn; the later ones sleep, so that a writer on the same core
// gets on.
constexpr int kQuickTries = 64;
constexpr int kSlowTries = 10;
constexpr uint32_t kMaxRecords = 1u << 20;  // of one table; a larger number is not a counters page

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

  bool read_at(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        return false;
      }
      offset += static_cast<uint64_t>(got);
      out = out.subspan(static_cast<size_t>(got));
    }
    return true;
  }

 private:
  int fd_;
};

template <typename T>
T load(const std::byte* record, size_t offset) {
  T value;
  std::memcpy(&value, record + offset, sizeof(T));
  return value;
}

std::string text(const std::byte* record, size_t offset, size_t capacity) {
  const char* begin = reinterpret_cast<const char*>(record + offset);
  return std::string(begin, ::strnlen(begin, capacity));
}

#define FIELD(Record, member) \
  load<std::remove_cv_t<decltype(layout::Record::member)>>(record, offsetof(layout::Record, member))
#define TEXT(Record, member) text(record, offsetof(layout::Record, member), sizeof(layout::Record::member))

void decode(const std::byte* record, JobCounters* out) {
  out->state = static_cast<layout::JobState>(FIELD(JobRecord, state));
  out->id = FIELD(JobRecord, id);
  out->name = TEXT(JobRecord, name);
  out->run_id = TEXT(JobRecord, run_id);
  out->uid = FIELD(JobRecord, uid);
  out->world = FIELD(JobRecord, world);
  out->nodes = FIELD(JobRecord, nodes);
  out->node_index = FIELD(JobRecord, node_index);
  out->epoch = FIELD(JobRecord, epoch);
  out->operations = FIELD(JobRecord, operations);
  out->raw_bytes = FIELD(JobRecord, raw_bytes);
  out->payload_bytes = FIELD(JobRecord, payload_bytes);
  out->header_bytes = FIELD(JobRecord, header_bytes);
  out->cause = TEXT(JobRecord, cause);
}

void decode(const std::byte* record, RankCounters* out) {
  out->state = static_cast<layout::RankState>(FIELD(RankRecord, state));
  out->job = FIELD(RankRecord, job);
  out->rank = FIELD(RankRecord, rank);
  out->pid = FIELD(RankRecord, pid);
  out->submissions = FIELD(RankRecord, submissions);
  out->late_total_ns = FIELD(RankRecord, late_total_ns);
  out->late_max_ns = FIELD(RankRecord, late_max_ns);
}

void decode(const std::byte* record, BucketCounters* out) {
  out->phase = static_cast<layout::BucketPhase>(FIELD(BucketRecord, phase));
  out->job = FIELD(BucketRecord, job);
  out->bucket = FIELD(BucketRecord, bucket);
  out->dtype = FIELD(BucketRecord, dtype);
  out->name = TEXT(BucketRecord, name);
  out->codec = TEXT(BucketRecord, codec);
  out->elements = FIELD(BucketRecord, elements);
  out->sequence = FIELD(BucketRecord, sequence);
  out->operations = FIELD(BucketRecord, operations);
  out->not_finite = FIELD(BucketRecord, not_finite);
  out->raw_bytes = FIELD(BucketRecord, raw_bytes);
  out->payload_bytes = FIELD(BucketRecord, payload_bytes);
  out->header_bytes = FIELD(BucketRecord, header_bytes);
  out->received_bytes = FIELD(BucketRecord, received_bytes);
  out->residual_bytes = FIELD(BucketRecord, residual_bytes);
  out->density = FIELD(BucketRecord, density);
  out->residual_norm = FIELD(BucketRecord, residual_norm);
  out->warm_stage = FIELD(BucketRecord, warm_stage);
  out->missing_ranks = FIELD(BucketRecord, missing_ranks);
  out->last_ns = FIELD(BucketRecord, last_ns);
  out->total_ns = FIELD(BucketRecord, total_ns);
  out->gather_total_ns = FIELD(BucketRecord, gather_total_ns);
}

void decode(const std::byte* record, PeerCounters* out) {
  out->state = static_cast<layout::PeerState>(FIELD(PeerRecord, state));
  out->job = FIELD(PeerRecord, job);
  out->node = TEXT(PeerRecord, node);
  out->ranks = TEXT(PeerRecord, ranks);
  out->address = TEXT(PeerRecord, address);
  out->path = TEXT(PeerRecord, path);
  out->heartbeat_ns = FIELD(PeerRecord, heartbeat_ns);
}

enum class Copy { kWhole, kTorn, kCutOff };

// One record under its sequence lock. The fences order the loads of the record against those of its version
// and pair with the writer's release stores of the version.
Copy copy_record(const File& file, uint64_t offset, std::span<std::byte> record) {
  for (int tries = 0; tries < kQuickTries + kSlowTries; ++tries) {
    uint32_t before = 0;
    uint32_t after = 0;
    if (!file.read_at(offset, std::as_writable_bytes(std::span(&before, 1)))) {
      return Copy::kCutOff;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!file.read_at(offset, record)) {
      return Copy::kCutOff;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!file.read_at(offset, std::as_writable_bytes(std::span(&after, 1)))) {
      return Copy::kCutOff;
    }
    if (before == after && before % 2 == 0) {
      return Copy::kWhole;
    }
    if (tries < kQuickTries) {
      ::sched_yield();
    } else {
      const timespec pause{0, 1'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }
  return Copy::kTorn;
}

// All records of a table that are in use. The first look takes the table in one piece, since most places are
// free; only the used ones are read again under their locks. False: the file was cut off.
template <typename Record, typename Counters>
bool read_table(const File& file, uint64_t offset, uint32_t count, std::vector<Counters>* out) {
  std::vector<std::byte> table(static_cast<size_t>(count) * sizeof(Record));
  if (!file.read_at(offset, table)) {
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const std::span<std::byte> record(table.data() + size_t{i} * sizeof(Record), sizeof(Record));
    if (load<uint64_t>(record.data(), offsetof(Record, id)) == 0) {
      continue;
    }
    const Copy copy = copy_record(file, offset + uint64_t{i} * sizeof(Record), record);
    if (copy == Copy::kCutOff) {
      return false;
    }
    if (load<uint64_t>(record.data(), offsetof(Record, id)) == 0) {
      continue;  // freed in between
    }
    Counters counters;
    counters.torn = copy == Copy::kTorn;
    decode(record.data(), &counters);
    out->push_back(std::move(counters));
  }
  return true;
}

// A daemon holds an exclusive lock while it lives. The shared lock that is tried here is let go at once.
bool is_locked(int fd) {
  if (::flock(fd, LOCK_SH | LOCK_NB) == 0) {
    ::flock(fd, LOCK_UN);
    return false;
  }
  return errno == EWOULDBLOCK;
}

Status check_header(const std::string& path, const std::byte* record, uint64_t file_bytes) {
  if (FIELD(CountersHeader, magic) != layout::kCountersMagic) {
    return {Code::kCorrupt, path + " is not a counters page of gradwired; is this the runtime directory?"};
  }
  const uint32_t version = FIELD(CountersHeader, layout_version);
  if (version != layout::kCountersVersion) {
    return {Code::kUnsupported, path + " has layout version " + std::to_string(version) +
                                    ", this command reads version " +
                                    std::to_string(layout::kCountersVersion) +
                                    "; use the gradwire command that came with the daemon"};
  }
  const uint32_t counts[] = {FIELD(CountersHeader, jobs), FIELD(CountersHeader, ranks),
                             FIELD(CountersHeader, buckets), FIELD(CountersHeader, peers)};
  const uint32_t sizes[] = {FIELD(CountersHeader, job_bytes), FIELD(CountersHeader, rank_bytes),
                            FIELD(CountersHeader, bucket_bytes), FIELD(CountersHeader, peer_bytes)};
  const uint32_t expected[] = {sizeof(layout::JobRecord), sizeof(layout::RankRecord),
                               sizeof(layout::BucketRecord), sizeof(layout::PeerRecord)};
  uint64_t needed = sizeof(layout::CountersHeader);
  bool sane = FIELD(CountersHeader, header_bytes) == sizeof(layout::CountersHeader);
  for (int i = 0; i < 4; ++i) {
    sane = sane && sizes[i] == expected[i] && counts[i] <= kMaxRecords;
    needed += uint64_t{counts[i]} * expected[i];
  }
  if (!sane) {
    return {Code::kCorrupt, path + " says sizes that a counters page of layout version 1 cannot have"};
  }
  if (file_bytes < needed) {
    return {Code::kCorrupt, path + " has " + std::to_string(file_bytes) + " bytes, its header promises " +
                                std::to_string(needed)};
  }
  return {};
}

}  // namespace

Result<CountersPage> read_counters(const std::string& path) {
  // O_NONBLOCK: a named pipe of that name must not stop us.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kPermissionDenied;
    return Status(code, "cannot open " + path + ": " + std::strerror(error));
  }
  const File file(fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return Status(Code::kCorrupt, path + " is not a regular file, so it is no counters page");
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  std::byte record[sizeof(layout::CountersHeader)];
  if (file_bytes < sizeof(record) || !file.read_at(0, record)) {
    return Status(Code::kCorrupt, path + " has " + std::to_string(file_bytes) +
                                      " bytes, too few for the header of a counters page");
  }
  GRADWIRE_RETURN_IF_ERROR(check_header(path, record, file_bytes));

  CountersPage page;
  page.locked = is_locked(fd);
  page.pid = FIELD(CountersHeader, pid);
  page.started_monotonic_ns = FIELD(CountersHeader, started_monotonic_ns);
  page.started_unix_ns = FIELD(CountersHeader, started_unix_ns);
  page.heartbeat_ns = load<uint64_t>(record, offsetof(layout::CountersHeader, heartbeat_ns));
  page.version = TEXT(CountersHeader, version);
  page.node = TEXT(CountersHeader, node);
  page.transport = TEXT(CountersHeader, transport);
  page.records_dropped = load<uint64_t>(record, offsetof(layout::CountersHeader, records_dropped));

  const uint32_t jobs = FIELD(CountersHeader, jobs);
  const uint32_t ranks = FIELD(CountersHeader, ranks);
  const uint32_t buckets = FIELD(CountersHeader, buckets);
  const uint32_t peers = FIELD(CountersHeader, peers);
  uint64_t offset = sizeof(layout::CountersHeader);
  bool whole = read_table<layout::JobRecord>(file, offset, jobs, &page.jobs);
  offset += uint64_t{jobs} * sizeof(layout::JobRecord);
  whole = whole && read_table<layout::RankRecord>(file, offset, ranks, &page.ranks);
  offset += uint64_t{ranks} * sizeof(layout::RankRecord);
  whole = whole && read_table<layout::BucketRecord>(file, offset, buckets, &page.buckets);
  offset += uint64_t{buckets} * sizeof(layout::BucketRecord);
  whole = whole && read_table<layout::PeerRecord>(file, offset, peers, &page.peers);
  if (!whole) {
    return Status(Code::kCorrupt, path + " was cut off while it was read");
  }
  return page;
}

#undef FIELD
#undef TEXT

std::string counters_path(const std::string& runtime_dir) {
  return runtime_dir + "/" + layout::kCountersFile;
}

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace gradwire::tools
