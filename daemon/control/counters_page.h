// The daemon's side of the counters page (client/layout/counters_layout.h). One thread writes: the control
// thread, with what the engine's thread has told it; so a page that moves proves that both turn.
//
// A job that has ended stays visible for a minute, or until its place is needed. The tables are the users' in
// equal parts: where one is full, who has fewer places takes one from the user who has most.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/layout/counters_layout.h"
#include "config/base/result.h"
#include "daemon/control/counters_file.h"
#include "daemon/control/counters_table.h"
#include "daemon/control/member.h"
#include "daemon/control/slots.h"
#include "daemon/engine/snapshot.h"

namespace gradwire::control {

class CountersPage {
 public:
  // kAlreadyExists: a living daemon holds the page of that directory.
  static Result<std::unique_ptr<CountersPage>> create(const std::string& runtime_dir, const std::string& node,
                                                      const std::string& version,
                                                      const std::string& transport);
  ~CountersPage();  // the file stays, without its lock: a stale page
  CountersPage(const CountersPage&) = delete;
  CountersPage& operator=(const CountersPage&) = delete;

  void heartbeat(uint64_t now_ns);
  // All jobs that have not ended; snapshots[i] is the engine's view of jobs[i] (id 0: it has none).
  void publish(const std::vector<JobFacts>& jobs, const std::vector<engine::JobSnapshot>& snapshots,
               uint64_t now_ns);
  // The last word on a job.
  void publish_ended(const JobFacts& job, const engine::JobSnapshot& snapshot, uint64_t now_ns);
  // Residuals of jobs that are not there.
  void set_kept(uint64_t bytes, uint64_t jobs);
  // The daemon stops in an orderly way.
  void mark_stopped();
  // Makes the file again where somebody deleted, replaced or cut it. True: it had to be.
  Result<bool> repair() { return file_.check(); }
  uint64_t write_calls() const { return file_.calls(); }  // for tests

 private:
  static constexpr uint64_t kJobsAt = sizeof(layout::CountersHeader);
  static constexpr uint64_t kRanksAt = kJobsAt + layout::kCounterJobs * sizeof(layout::JobRecord);
  static constexpr uint64_t kBucketsAt = kRanksAt + layout::kCounterRanks * sizeof(layout::RankRecord);
  static constexpr uint64_t kPeersAt = kBucketsAt + layout::kCounterBuckets * sizeof(layout::BucketRecord);

  explicit CountersPage(const std::string& runtime_dir) : file_(runtime_dir) {}
  void write_job(const JobFacts& job, const engine::JobSnapshot& snapshot);
  void write_ranks(const JobFacts& job, const engine::JobSnapshot& snapshot);
  void write_buckets(const JobFacts& job, const engine::JobSnapshot& snapshot);
  void write_peers(const JobFacts& job);
  void erase_job(uint64_t job);
  void erase_record(Slots& slots, Slots::Key key);
  // Of a job that has ended, else of the user who has most, if `uid` has fewer.
  bool make_room(Slots& slots, uint32_t uid);
  int take(Slots& slots, Slots::Key key, uint32_t uid);  // -1: no place

  void flush();  // what was put into the tables

  layout::CountersHeader* header();                        // in the image
  void set(std::atomic<uint64_t>& field, uint64_t value);  // of the header

  CountersFile file_;
  CountersTable<layout::JobRecord> job_table_{file_, kJobsAt};
  CountersTable<layout::RankRecord> rank_table_{file_, kRanksAt};
  CountersTable<layout::BucketRecord> bucket_table_{file_, kBucketsAt};
  CountersTable<layout::PeerRecord> peer_table_{file_, kPeersAt};
  std::string path_;      // data path of the transport
  uint64_t dropped_ = 0;  // records without a place since the last publish() began
  Slots jobs_{layout::kCounterJobs};
  Slots ranks_{layout::kCounterRanks};
  Slots buckets_{layout::kCounterBuckets};
  Slots peers_{layout::kCounterPeers};
  std::map<uint64_t, uint64_t> ended_;  // job -> when (ns); job numbers ascend with time
};

}  // namespace gradwire::control
