#include "daemon/control/residual_store.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "daemon/control/log.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

using Memory = std::shared_ptr<const std::vector<float>>;

// Of values that are shared: charged until the last who has them lets go.
Memory charged(const Memory& memory, const QuotaLedger::Charge& charge) {
  struct Pinned {
    QuotaLedger::Charge charge;
    Memory memory;  // goes first
  };
  const auto pinned = std::make_shared<const Pinned>(Pinned{charge, memory});
  return {pinned, pinned->memory.get()};
}

}  // namespace

uint64_t description_bytes(std::span<const compress::LayerState> layers) {
  uint64_t bytes = 0;
  for (const compress::LayerState& layer : layers) {
    bytes += sizeof(layer) + layer.name.size() + layer.pieces.size() * sizeof(layer.pieces[0]);
  }
  return bytes;
}

uint64_t state_bytes(std::span<const compress::LayerState> layers) {
  uint64_t bytes = description_bytes(layers);
  std::set<const void*> counted;
  for (const compress::LayerState& layer : layers) {
    for (const auto* values : {&layer.residual, &layer.velocity}) {
      if (values->memory && counted.insert(values->memory.get()).second) {
        bytes += values->memory->size() * sizeof(float);
      }
    }
  }
  return bytes;
}

ResidualStore::Job& ResidualStore::job_of(const JobIdentity& identity) {
  Job& job = jobs_[identity];
  if (!job.expiry) {
    job.expiry = std::make_unique<Timer>(scheduler_);
  }
  return job;
}

// Forgets jobs of which nothing is there and nothing is on its way.
void ResidualStore::sweep() {
  std::erase_if(jobs_, [](const auto& entry) {
    const Job& job = entry.second;
    return job.epochs == 0 && job.kept.empty() && job.wanted.use_count() == 1;
  });
}

ResidualStore::Wanted ResidualStore::epoch_begins(const JobIdentity& identity) {
  sweep();
  Job& job = job_of(identity);
  ++job.epochs;
  job.expiry->stop();
  return job.wanted;
}

void ResidualStore::epoch_ends(const JobIdentity& identity, bool in_order) {
  Job& job = job_of(identity);
  job.epochs -= job.epochs > 0 ? 1 : 0;
  if (in_order) {
    forget(identity);
  } else if (job.epochs == 0) {
    start_expiry(identity, job);
  }
}

void ResidualStore::start_expiry(const JobIdentity& identity, Job& job) {
  if (ttl_.count() == 0) {
    clear(job);
  } else if (!job.kept.empty() && !job.expiry->running()) {
    job.expiry->start(ttl_, [this, identity] {
      log_info("residuals_expired", {{"job", identity.name}, {"run", identity.run_id}});
      clear(job_of(identity));
      sweep();
    });
  }
}

void ResidualStore::forget(const JobIdentity& identity) {
  const auto found = jobs_.find(identity);
  if (found == jobs_.end()) {
    return;
  }
  Job& job = found->second;
  *job.wanted = false;
  job.wanted = std::make_shared<bool>(true);
  job.absent.clear();
  clear(job);
  job.expiry->stop();
  sweep();
}

void ResidualStore::close() {
  closed_ = true;
  for (auto& [identity, job] : jobs_) {
    *job.wanted = false;
  }
  jobs_.clear();
}

void ResidualStore::retire(const JobIdentity& job, const std::string& bucket,
                           std::unique_ptr<compress::BucketReducer> reducer, const Wanted& wanted,
                           QuotaLedger::Charge charge, Away away) {
  if (closed_ || !reducer) {
    return;
  }
  struct Retired {
    std::unique_ptr<compress::BucketReducer> reducer;
    std::vector<compress::LayerState> layers;
    QuotaLedger::Charge charge;
    Away away;
  };
  auto retired = std::make_shared<Retired>();
  retired->reducer = std::move(reducer);
  retired->charge = std::move(charge);
  retired->away = std::move(away);
  if (!*wanted) {
    retired->charge.reset();
    release_in(workshop_, std::move(retired));
    return;
  }
  workshop_.run(
      [retired] {
        retired->layers = retired->reducer->take_state();
        retired->reducer.reset();
      },
      [retired, job, bucket, wanted, weak = weak_from_this()] {
        retired->charge.reset();
        if (const auto self = weak.lock(); self && *wanted) {
          self->keep(job, bucket, std::move(retired->layers));
          retired->away = nullptr;
        } else if (self && !self->closed_) {
          release_in(self->workshop_, retired);
        }
      });
}

void ResidualStore::keep(const JobIdentity& identity, const std::string& bucket,
                         std::vector<compress::LayerState> layers) {
  if (closed_ || layers.empty()) {
    return;
  }
  Job& job = job_of(identity);
  Kept kept;
  kept.bucket = bucket;
  kept.bytes = state_bytes(layers);
  kept.layers = std::move(layers);
  if (job.epochs == 0 && ttl_.count() == 0) {
    discard_one(std::move(kept));
    return;
  }
  const std::array<uint64_t, 1> parts = {kept.bytes};
  auto charges = charge(identity.uid, parts, {"kept residuals of " + bucket_text(bucket), Holding::kKept});
  if (!charges.ok()) {
    log_warning("residuals_dropped", {{"job", identity.name}, {"cause", charges.status().message()}});
    discard_one(std::move(kept));
    return;
  }
  kept.age = ++last_age_;
  kept.charge = std::move(charges->front());
  job.kept.push_back(std::move(kept));
  if (job.epochs == 0) {
    start_expiry(identity, job);
  }
}

std::vector<compress::StateSection> ResidualStore::copy(const JobIdentity& identity) const {
  std::vector<compress::StateSection> sections;
  const auto found = jobs_.find(identity);
  if (found == jobs_.end()) {
    return sections;
  }
  for (const Kept& kept : found->second.kept) {
    sections.push_back({kept.bucket, kept.layers});
    std::map<const void*, Memory> shared;
    for (compress::LayerState& layer : sections.back().layers) {
      for (auto* values : {&layer.residual, &layer.velocity}) {
        Memory& memory = shared[values->memory.get()];
        if (values->memory && !memory) {
          memory = charged(values->memory, kept.charge);
        }
        values->memory = memory;
      }
    }
  }
  return sections;
}

std::vector<compress::LayerState> ResidualStore::take(const JobIdentity& identity, const std::string& bucket,
                                                      Layers layers) {
  std::vector<compress::LayerState> taken;
  const auto found = jobs_.find(identity);
  if (found == jobs_.end() || found->second.kept.empty()) {
    return taken;
  }
  std::unordered_map<std::string_view, uint64_t> wanted;
  for (const auto& [name, elements] : layers) {
    wanted.emplace(name, elements);
  }
  auto& all = found->second.kept;
  for (const bool same_bucket : {true, false}) {
    for (auto kept = all.rbegin(); kept != all.rend(); ++kept) {
      if ((kept->bucket == bucket) != same_bucket) {
        continue;
      }
      std::erase_if(kept->layers, [&](compress::LayerState& layer) {
        const auto wish = wanted.find(layer.name);
        if (wish == wanted.end() || wish->second != layer.elements) {
          return false;
        }
        wanted.erase(wish);
        taken.push_back(std::move(layer));
        return true;
      });
    }
  }
  std::erase_if(all, [](const Kept& kept) { return kept.layers.empty(); });
  if (all.empty()) {
    found->second.expiry->stop();
  }
  return taken;
}

uint64_t ResidualStore::kept_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [identity, job] : jobs_) {
    for (const Kept& kept : job.kept) {
      bytes += job.epochs == 0 ? kept.bytes : 0;
    }
  }
  return bytes;
}

uint64_t ResidualStore::kept_jobs() const {
  return static_cast<uint64_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second.epochs == 0 && !entry.second.kept.empty();
  }));
}

}  // namespace gradwire::control
