// One table of the counters page: records are put into their places and published together, under the
// sequence locks of client/layout/counters_layout.h.
//
// Only records that differ are written, and neighbours in one go. For readers the order of three system calls
// is all that counts: every version that changes is odd in the file before any other byte of its record does,
// and even again after all of them. What lies between neighbours that changed is written as it was.
//
// Not thread-safe: one thread writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>

#include "daemon/control/counters_file.h"
#include "daemon/control/counters_records.h"

namespace gradwire::control {

template <typename Record>
class CountersTable {
 public:
  // `at`: where it begins in the file's image.
  CountersTable(CountersFile& file, uint64_t at) : file_(file), at_(at) {}

  // Published by the next flush(); of several, the last one is. `record.version` does not matter.
  void put(size_t slot, const Record& record) {
    if (std::memcmp(body(slot), body(&record), kBody) == 0) {
      changed_.erase(slot);
    } else {
      changed_[slot] = record_bytes(record);
    }
  }
  void erase(size_t slot) { put(slot, Blank<Record>().record); }

  void flush() {
    for (auto begin = changed_.begin(); begin != changed_.end();) {
      auto end = std::next(begin);
      size_t last = begin->first;
      while (end != changed_.end() && end->first - last <= kBridge) {
        last = (end++)->first;
      }
      write(begin, end, last);
      begin = end;
    }
    changed_.clear();
  }

 private:
  static_assert(offsetof(Record, version) == 0);
  static constexpr size_t kLock = sizeof(std::atomic<uint32_t>);
  static constexpr size_t kBody = sizeof(Record) - kLock;
  // One call for two places this far from each other is cheaper than two.
  static constexpr size_t kBridge = 8;

  struct Bytes {
    std::byte body[kBody];
  };
  using Changed = std::map<size_t, Bytes>;

  static const std::byte* body(const Record* record) {
    return reinterpret_cast<const std::byte*>(record) + kLock;
  }
  static Bytes record_bytes(const Record& record) {
    Bytes bytes;
    std::memcpy(bytes.body, body(&record), kBody);
    return bytes;
  }
  Record* place(size_t slot) {
    return reinterpret_cast<Record*>(file_.image() + at_ + slot * sizeof(Record));
  }
  std::byte* body(size_t slot) { return reinterpret_cast<std::byte*>(place(slot)) + kLock; }

  void next_versions(typename Changed::iterator begin, typename Changed::iterator end) {
    for (; begin != end; ++begin) {
      auto& version = place(begin->first)->version;  // nobody else has the image
      version.store(version.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }
  void write(typename Changed::iterator begin, typename Changed::iterator end, size_t last) {
    const uint64_t at = at_ + begin->first * sizeof(Record);
    const uint64_t locks = (last - begin->first) * sizeof(Record) + kLock;
    next_versions(begin, end);
    file_.write(at, locks);
    for (auto each = begin; each != end; ++each) {
      std::memcpy(body(each->first), each->second.body, kBody);
    }
    file_.write(at + kLock, locks - kLock + kBody);
    next_versions(begin, end);
    file_.write(at, locks);
  }

  CountersFile& file_;
  const uint64_t at_;
  Changed changed_;
};

}  // namespace gradwire::control
