// ResidualStore: what is left of buckets' error feedback when the buckets are gone, by job and layer, until a
// bucket with that layer takes it over.
//
// While an epoch of the job lives here, residuals of destroyed buckets live with it (a rebuilt bucket goes on
// from them). After an epoch that failed they are kept for `ttl`, in case the job comes back; 0 keeps nothing
// beyond the epoch. After an orderly end nothing is kept. What is kept counts towards the user's
// quotas.bytes_per_user and is the first to give way.
//
// On the control thread; no I/O. Big pieces are moved about in the workshop.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/reducer.h"
#include "compress/state_format.h"
#include "daemon/control/documents.h"
#include "daemon/control/engine_port.h"
#include "daemon/control/quota.h"

namespace gradwire::control {

// What it takes to keep layers: all that is known of them, without and with their residuals, of which layers
// may share one.
uint64_t description_bytes(std::span<const compress::LayerState> layers);
uint64_t state_bytes(std::span<const compress::LayerState> layers);

// What has been charged for a state on its way to the store.
struct AdmittedState {
  uint64_t bytes = 0;
  QuotaLedger::Charge charge;
};

class ResidualStore : public std::enable_shared_from_this<ResidualStore> {
 public:
  using Layers = std::span<const std::pair<std::string, uint64_t>>;  // name, elements
  // True as long as what comes back from an epoch is wanted.
  using Wanted = std::shared_ptr<bool>;

  ResidualStore(Scheduler& scheduler, Workshop& workshop, std::shared_ptr<QuotaLedger> quotas,
                Nanoseconds ttl)
      : scheduler_(scheduler), workshop_(workshop), quotas_(std::move(quotas)), ttl_(ttl) {}

  Wanted epoch_begins(const JobIdentity& job);
  void epoch_ends(const JobIdentity& job, bool in_order);
  // The next run of that name starts clean, also of what is still on its way here.
  void forget(const JobIdentity& job);
  // Nothing is kept any more, and the workshop is not used any more.
  void close();

  // Of a bucket whose residuals are not here: it is being built, in the engine, or on its way back. Whoever
  // has them keeps this, the bucket's name, until they are kept or dropped.
  using Away = std::shared_ptr<const std::string>;
  using Absent = std::vector<std::weak_ptr<const std::string>>;
  Away away(const JobIdentity& job, const std::string& bucket);
  // Of all of a job's buckets.
  Absent absent(const JobIdentity& job) const;
  // Answers, maybe at once, when nobody has these any more. kUnavailable: that takes too long.
  void when_home(Absent absent, const std::function<void(const Status&)>& done);

  // A bucket of the job is gone; `charge` is what its residual was charged with.
  void retire(const JobIdentity& job, const std::string& bucket,
              std::unique_ptr<compress::BucketReducer> reducer, const Wanted& wanted,
              QuotaLedger::Charge charge, Away away = nullptr);
  void keep(const JobIdentity& job, const std::string& bucket, std::vector<compress::LayerState> layers);
  // Those of the layers (by name and size) that are there; each can be taken once. Of several layers of one
  // name that of the bucket of this name comes first, then the latest.
  std::vector<compress::LayerState> take(const JobIdentity& job, const std::string& bucket, Layers layers);

  // What is kept of a job, the oldest bucket first. The residuals themselves are shared, not copied, and stay
  // charged as long as anybody has them; nothing of that gives way meanwhile.
  std::vector<compress::StateSection> copy(const JobIdentity& job) const;
  // For a state that will replace what is kept of the job: that does not stand in its way.
  Result<AdmittedState> admit(const JobIdentity& job, uint64_t bytes);
  // Instead of whatever is kept of a job that has an epoch here. A failure changes nothing of the job's, and
  // leaves the sections to whom they belong.
  Status replace(const JobIdentity& job, std::vector<compress::StateSection>&& sections,
                 AdmittedState admitted = {});

  // As QuotaLedger::charge_bytes; where it would refuse, the user's kept residuals are dropped, the oldest
  // first, until it does not. Where all of them would not be enough, none is.
  Result<std::vector<QuotaLedger::Charge>> charge_bytes(uint32_t uid, std::span<const uint64_t> parts,
                                                        const std::string& formula);

  // Of jobs that have no epoch here.
  uint64_t kept_bytes() const;
  uint64_t kept_jobs() const;

 private:
  struct Job;
  struct Kept {  // one bucket's
    std::string bucket;
    std::vector<compress::LayerState> layers;
    uint64_t bytes = 0;
    uint64_t age = 0;  // ascends
    QuotaLedger::Charge charge;

    bool shared() const { return charge.use_count() > 1; }  // with a copy, which keeps it charged
  };
  struct Asked {
    std::string formula;
    Holding holding = Holding::kBuckets;
    const Job* replaced = nullptr;  // what is kept of it goes
    uint64_t credit = 0;            // besides
  };
  struct Job {
    unsigned epochs = 0;  // that live here
    Wanted wanted = std::make_shared<bool>(true);
    Absent absent;          // some may be home by now
    std::deque<Kept> kept;  // the latest last
    std::unique_ptr<Timer> expiry;
  };

  struct Awaited;
  void look_home(const std::shared_ptr<Awaited>& awaited);
  Job& job_of(const JobIdentity& job);
  void start_expiry(const JobIdentity& identity, Job& job);
  Result<std::vector<QuotaLedger::Charge>> charge(uint32_t uid, std::span<const uint64_t> parts,
                                                  const Asked& asked);
  uint64_t droppable_bytes(uint32_t uid, const Job* except) const;
  bool drop_oldest(uint32_t uid, const Asked& asked);
  // Gives back their charges, and the memory in the workshop: before what is charged next takes its own.
  void discard(std::deque<Kept> kept);
  void discard_one(Kept kept);
  void clear(Job& job) { discard(std::exchange(job.kept, {})); }
  void sweep();

  Scheduler& scheduler_;
  Workshop& workshop_;
  std::shared_ptr<QuotaLedger> quotas_;
  Nanoseconds ttl_;
  uint64_t last_age_ = 0;
  bool closed_ = false;
  std::map<JobIdentity, Job> jobs_;
};

}  // namespace gradwire::control
