// What stands behind gw_job and gw_bucket.
//
// Fields are marked with the side that owns them (gradwire.h: submitting side, waiting side). What both touch
// is atomic. A bucket's state hands its operation from one side to the other:
//   idle -> in flight (submitting side) -> done (waiting side, completion read) -> idle (waiting side, caller
//   told).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "client/include/gradwire/gradwire.h"
#include "client/layout/ring.h"
#include "client/layout/session_layout.h"
#include "client/src/connection.h"
#include "client/src/environment.h"
#include "client/src/fork_guard.h"
#include "client/src/mapping.h"
#include "client/src/progress.h"
#include "client/src/pulse.h"
#include "client/wire/unique_fd.h"

namespace gradwire::client {

enum BucketState : uint32_t { kIdle = 0, kInFlight = 1, kDone = 2 };

// Slots by number, found by the waiting side without a lock while the submitting side adds and removes.
class BucketTable {
 public:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kChunks = 256;
  static constexpr uint32_t kNone = UINT32_MAX;

  ~BucketTable();
  // Submitting side. kNone: all 65,536 slots are taken.
  uint32_t add(gw_bucket* bucket);
  void remove(uint32_t slot);
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (uint32_t slot = 0; slot < kChunk * kChunks; ++slot) {
      if (chunks_[slot / kChunk].load(std::memory_order_relaxed) == nullptr) {
        slot += kChunk - 1;
      } else if (gw_bucket* bucket = find(slot)) {
        visit(bucket);
      }
    }
  }
  // Either side; acquire pairs with add's release.
  gw_bucket* find(uint64_t slot) const {
    if (slot >= uint64_t{kChunk} * kChunks) {
      return nullptr;
    }
    const Chunk* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : (*chunk)[slot % kChunk].load(std::memory_order_acquire);
  }

 private:
  using Chunk = std::array<std::atomic<gw_bucket*>, kChunk>;
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

// One thread at a time; a second one is told instead of being let in.
class Side {
 public:
  bool enter() { return !taken_.exchange(true, std::memory_order_acquire); }  // pairs with leave
  void leave() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class SideLock {
 public:
  explicit SideLock(Side* side) : side_(side), entered_(side->enter()) {}
  ~SideLock() {
    if (entered_) {
      side_->leave();
    }
  }
  SideLock(const SideLock&) = delete;
  SideLock& operator=(const SideLock&) = delete;
  bool entered() const { return entered_; }

 private:
  Side* side_;
  bool entered_;
};

}  // namespace gradwire::client

struct gw_bucket {
  gw_job* job = nullptr;
  std::string name, codec;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  uint32_t id = 0;
  uint32_t slot = 0;
  uint32_t flags = 0;  // GW_BUCKET_...
  gw_dtype dtype = GW_FLOAT32;
  gradwire::client::Mapping gradient, result;

  std::atomic<uint32_t> state{gradwire::client::kIdle};
  uint64_t sequence = 0;  // submitting side; read by the waiting side while in flight

  // Waiting side: of the completion that was read.
  gw_status status = GW_OK;
  uint32_t result_flags = 0;
  gw_bucket* next_done = nullptr;  // oldest first
  gw_bucket* previous_done = nullptr;
};

struct gw_job {
  gradwire::client::ForkGuard fork_guard;
  gradwire::client::Identity identity;
  std::string daemon_version = "of unknown version";
  gradwire::client::Connection connection;
  gradwire::client::Mapping memory;
  gradwire::layout::SessionHeader* header = nullptr;
  gradwire::wire::UniqueFd bell;  // our end: a byte a wake-up, either way
  uint32_t capacity = 0;
  int32_t local_ranks = 0;
  uint64_t epoch = 0;
  gradwire::client::Past past;
  int64_t peer_timeout_ms = 0;
  int64_t operation_timeout_ms = 0;
  bool spin = true;

  gradwire::client::Side submitting, waiting;
  gradwire::layout::RingProducer<gradwire::layout::Submission> submissions;  // submitting side
  gradwire::layout::RingConsumer<gradwire::layout::Completion> completions;  // waiting side
  gradwire::client::BucketTable buckets;
  gw_bucket barrier;
  std::atomic<uint32_t> in_flight{0};     // submitted, completion not read
  std::atomic<bool> daemon_woken{false};  // by the last submission: a spin would only keep it from running
  gw_bucket* oldest_done = nullptr;       // waiting side
  gw_bucket* newest_done = nullptr;
  int64_t next_look_ns = 0;       // waiting side: gw_test looks at the socket now and then
  gradwire::client::Pulse pulse;  // waiting side

  // The end of the job, once: release of failed pairs with acquire in ended().
  std::atomic<int32_t> failed{GW_OK};
  std::mutex failure_mutex;
  std::string failure;
};

namespace gradwire::client {

// Requests that wait for other ranks get the daemon's clock and this much, so that its sentence comes first.
inline constexpr int64_t kMarginMs = 1000;

inline Deadline daemon_deadline(const gw_job& job) {
  return Deadline::after_ms(job.operation_timeout_ms + job.peer_timeout_ms + kMarginMs);
}

// GW_OK, or the failure of a NULL handle or of a forked child.
gw_status check_handle(const gw_job* job);
gw_status check_handle(const gw_bucket* bucket);
gw_status refuse_second_thread(const char* side);

// GW_OK while the job lives; else its failure, as this thread's last error.
gw_status ended(gw_job* job);
// Ends the job for this process (first cause wins) and returns its failure.
gw_status end_job(gw_job* job, gw_status status, std::string_view sentence);
// Replaces a request's failure by the abort's cause if the epoch has ended, which says more.
gw_status explain(gw_job* job, gw_status status);

// Reads what the socket has to say, which may be the end of the job.
gw_status look_at_socket(gw_job* job);
// Waiting side: ends the job if the daemon stands still.
gw_status look_at_pulse(gw_job* job);
// Waiting side: sleeps until the bell rings, the socket speaks, or it is time to look around again.
gw_status sleep(gw_job* job, Deadline deadline);

// Both sides: tells the daemon that this rank goes. GW_OK also where the epoch was over.
gw_status leave(gw_job* job);

// Submitting side: publishes an operation of an idle bucket.
gw_status submit(gw_bucket* bucket, uint8_t operation, gw_reduce_op op, double scale, uint32_t root,
                 uint8_t flags = 0);
// Waiting side: waits for the bucket (or, with nullptr, for any but the barrier) and hands it out.
gw_status wait_for(gw_job* job, gw_bucket* wanted, int64_t timeout_ms, gw_bucket** ended_bucket,
                   uint32_t* flags);

}  // namespace gradwire::client
