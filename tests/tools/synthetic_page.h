// A counters page in a temporary folder, written by the test as a daemon would.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <string>

#include "client/layout/counters_layout.h"
#include "client/layout/session_layout.h"
#include "tools/counters_reader.h"

namespace gradwire::tools {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradwire-test.XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Copies text into a record's field.
template <size_t N>
void put(char (&field)[N], const char* text) {
  std::strncpy(field, text, N - 1);
}

class SyntheticPage {
 public:
  SyntheticPage() {
    fd_ = ::open(counters_path(folder_.path()).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (::ftruncate(fd_, layout::kCountersBytes) != 0) {
      std::abort();
    }
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, layout::kCountersBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    layout::CountersHeader* h = new (memory_) layout::CountersHeader{};
    h->magic = layout::kCountersMagic;
    h->layout_version = layout::kCountersVersion;
    h->header_bytes = sizeof(layout::CountersHeader);
    h->jobs = layout::kCounterJobs;
    h->ranks = layout::kCounterRanks;
    h->buckets = layout::kCounterBuckets;
    h->peers = layout::kCounterPeers;
    h->job_bytes = sizeof(layout::JobRecord);
    h->rank_bytes = sizeof(layout::RankRecord);
    h->bucket_bytes = sizeof(layout::BucketRecord);
    h->peer_bytes = sizeof(layout::PeerRecord);
    h->pid = ::getpid();
    h->started_monotonic_ns = monotonic_ns();
    h->heartbeat_ns.store(monotonic_ns(), std::memory_order_relaxed);
    put(h->version, "0.1.0");
    put(h->node, "worker-3");
    put(h->transport, "tcp");
    lock();
  }
  ~SyntheticPage() {
    ::munmap(memory_, layout::kCountersBytes);
    ::close(fd_);
  }
  SyntheticPage(const SyntheticPage&) = delete;
  SyntheticPage& operator=(const SyntheticPage&) = delete;

  void lock() { ::flock(fd_, LOCK_EX | LOCK_NB); }
  void unlock() { ::flock(fd_, LOCK_UN); }
  void cut_to(uint64_t bytes) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
      std::abort();
    }
  }

  const std::string& folder() const { return folder_.path(); }
  std::string path() const { return counters_path(folder()); }
  layout::CountersHeader& header() { return at<layout::CountersHeader>(0, 0); }
  layout::JobRecord& job(size_t i) { return at<layout::JobRecord>(kJobs, i); }
  layout::RankRecord& rank(size_t i) { return at<layout::RankRecord>(kRanks, i); }
  layout::BucketRecord& bucket(size_t i) { return at<layout::BucketRecord>(kBuckets, i); }
  layout::PeerRecord& peer(size_t i) { return at<layout::PeerRecord>(kPeers, i); }

  // A running job "train" with two ranks, one bucket and one peer.
  void fill() {
    job(0).id = 1;
    job(0).state = static_cast<uint32_t>(layout::JobState::kRunning);
    put(job(0).name, "train");
    job(0).world = 4;
    job(0).nodes = 2;
    job(0).operations = 10;
    job(0).raw_bytes = 4'000'000;
    job(0).payload_bytes = 90'000;
    job(0).header_bytes = 10'000;
    for (uint32_t i = 0; i < 2; ++i) {
      rank(i).id = i + 1;
      rank(i).job = 1;
      rank(i).state = static_cast<uint32_t>(layout::RankState::kAttached);
      rank(i).rank = i;
      rank(i).submissions = 10;
      rank(i).late_total_ns = i * 5'000'000u;
      rank(i).late_max_ns = i * 3'000'000u;
      rank(i).late_count = i * 4;
    }
    bucket(0).id = 2;
    bucket(0).job = 1;
    bucket(0).bucket = 1;
    put(bucket(0).name, "conv1.weight");
    put(bucket(0).codec, "laco");
    bucket(0).elements = 1'000'000;
    bucket(0).operations = 10;
    bucket(0).density = 0.01;
    bucket(0).raw_bytes = 4'000'000;
    bucket(0).payload_bytes = 90'000;
    bucket(0).header_bytes = 10'000;
    bucket(0).last_ns = 1'500'000;
    bucket(0).total_ns = 20'000'000;
    peer(0).id = 1;
    peer(0).job = 1;
    peer(0).state = static_cast<uint32_t>(layout::PeerState::kUp);
    put(peer(0).node, "worker-4");
    put(peer(0).ranks, "2,3");
    put(peer(0).address, "10.0.0.4:7470");
    peer(0).heartbeat_ns = monotonic_ns();
    peer(0).node_index = 1;
    bucket(0).waits_for_node = UINT32_MAX;
    bucket(0).operation = layout::kOpAllreduce;
  }

 private:
  static constexpr size_t kJobs = sizeof(layout::CountersHeader);
  static constexpr size_t kRanks = kJobs + layout::kCounterJobs * sizeof(layout::JobRecord);
  static constexpr size_t kBuckets = kRanks + layout::kCounterRanks * sizeof(layout::RankRecord);
  static constexpr size_t kPeers = kBuckets + layout::kCounterBuckets * sizeof(layout::BucketRecord);

  // A fresh file is zeros, which is a valid value of every record.
  template <typename Record>
  Record& at(size_t table, size_t i) {
    return *reinterpret_cast<Record*>(memory_ + table + i * sizeof(Record));
  }

  TemporaryFolder folder_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
};

}  // namespace gradwire::tools
