#include "tools/counters_reader.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
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

template <typename T>
void read_field(const std::byte* field, size_t size, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(out, field, std::min(size, sizeof(T)));
}

void read_field(const std::byte* field, size_t size, std::string* out) {
  const char* begin = reinterpret_cast<const char*>(field);
  out->assign(begin, ::strnlen(begin, size));
}

#define READ(member, ...) read_field(record + offsetof(Record, member), sizeof(Record::member), &out->member);

void decode(const std::byte* record, HeaderCounters* out) {
  using Record = layout::CountersHeader;
  GRADWIRE_HEADER_FIELDS(READ)
}
void decode(const std::byte* record, JobCounters* out) {
  using Record = layout::JobRecord;
  GRADWIRE_JOB_FIELDS(READ, READ)
}
void decode(const std::byte* record, RankCounters* out) {
  using Record = layout::RankRecord;
  GRADWIRE_RANK_FIELDS(READ, READ)
}
void decode(const std::byte* record, BucketCounters* out) {
  using Record = layout::BucketRecord;
  GRADWIRE_BUCKET_FIELDS(READ, READ)
}
void decode(const std::byte* record, PeerCounters* out) {
  using Record = layout::PeerRecord;
  GRADWIRE_PEER_FIELDS(READ, READ)
}

#undef READ

enum class Copy { kWhole, kTorn, kCutOff };

// One record under its sequence lock. A call of its own for each of the three reads keeps them in order: the
// kernel's writes to the file come in the writer's order. The fences keep the compiler to it.
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
// free; only the used ones are read again under their locks. Moves `offset` behind the table. False: the file
// was cut off.
template <typename Counters>
bool read_table(const File& file, uint64_t* offset, uint32_t count, std::vector<Counters>* out) {
  using Record = typename Counters::Record;
  const uint64_t begin = *offset;
  *offset += uint64_t{count} * sizeof(Record);
  std::vector<std::byte> table(static_cast<size_t>(count) * sizeof(Record));
  if (!file.read_at(begin, table)) {
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const std::span<std::byte> record(table.data() + size_t{i} * sizeof(Record), sizeof(Record));
    if (load<uint64_t>(record.data(), offsetof(Record, id)) == 0) {
      continue;
    }
    const Copy copy = copy_record(file, begin + uint64_t{i} * sizeof(Record), record);
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

// The tables' sizes, as the header says them.
struct TableSizes {
  uint32_t count, record_bytes, expected_bytes;
};

std::array<TableSizes, 4> tables_of(const std::byte* header) {
  using Header = layout::CountersHeader;
  const auto number = [&](size_t offset) { return load<uint32_t>(header, offset); };
  return {
      {{number(offsetof(Header, jobs)), number(offsetof(Header, job_bytes)), sizeof(layout::JobRecord)},
       {number(offsetof(Header, ranks)), number(offsetof(Header, rank_bytes)), sizeof(layout::RankRecord)},
       {number(offsetof(Header, buckets)), number(offsetof(Header, bucket_bytes)),
        sizeof(layout::BucketRecord)},
       {number(offsetof(Header, peers)), number(offsetof(Header, peer_bytes)), sizeof(layout::PeerRecord)}}};
}

Status check_header(const std::string& path, const std::byte* header, uint64_t file_bytes) {
  using Header = layout::CountersHeader;
  if (load<uint64_t>(header, offsetof(Header, magic)) != layout::kCountersMagic) {
    return {Code::kCorrupt, path + " is not a counters page of gradwired; is this the runtime directory?"};
  }
  const uint32_t version = load<uint32_t>(header, offsetof(Header, layout_version));
  if (version != layout::kCountersVersion) {
    return {Code::kUnsupported, path + " has layout version " + std::to_string(version) +
                                    ", this command reads version " +
                                    std::to_string(layout::kCountersVersion) +
                                    "; use the gradwire command that came with the daemon"};
  }
  uint64_t needed = sizeof(Header);
  bool sane = load<uint32_t>(header, offsetof(Header, header_bytes)) == sizeof(Header);
  for (const TableSizes& table : tables_of(header)) {
    sane = sane && table.record_bytes == table.expected_bytes && table.count <= kMaxRecords;
    needed += uint64_t{table.count} * table.expected_bytes;
  }
  if (!sane) {
    return {Code::kCorrupt, path + " says sizes that a counters page of layout version " +
                                std::to_string(layout::kCountersVersion) + " cannot have"};
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
  decode(record, static_cast<HeaderCounters*>(&page));
  const auto tables = tables_of(record);
  uint64_t offset = sizeof(layout::CountersHeader);
  const bool whole = read_table(file, &offset, tables[0].count, &page.jobs) &&
                     read_table(file, &offset, tables[1].count, &page.ranks) &&
                     read_table(file, &offset, tables[2].count, &page.buckets) &&
                     read_table(file, &offset, tables[3].count, &page.peers);
  if (!whole) {
    return Status(Code::kCorrupt, path + " was cut off while it was read");
  }
  return page;
}

bool is_page_held(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return false;
  }
  const File file(fd);
  return is_locked(fd);
}

std::string counters_path(const std::string& runtime_dir) {
  return runtime_dir + "/" + layout::kCountersFile;
}

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace gradwire::tools
