#include "daemon/control/residual_store.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "daemon/control/log.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

// Residuals are shared between the layers of a bucket.
uint64_t bytes_of(const std::vector<compress::LayerState>& layers) {
  uint64_t bytes = 0;
  std::set<const void*> counted;
  for (const compress::LayerState& layer : layers) {
    bytes += sizeof(layer) + layer.name.size();
    if (layer.residual && counted.insert(layer.residual.get()).second) {
      bytes += layer.residual->size() * sizeof(float);
    }
  }
  return bytes;
}

}  // namespace

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
    job.kept.clear();
  } else if (!job.kept.empty() && !job.expiry->running()) {
    job.expiry->start(ttl_, [this, identity] {
      log_info("residuals_expired", {{"job", identity.name}, {"run", identity.run_id}});
      job_of(identity).kept.clear();
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
  job.kept.clear();
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
                           QuotaLedger::Charge charge) {
  if (closed_ || !*wanted || !reducer || reducer->residual().empty()) {
    return;
  }
  struct Retired {
    std::unique_ptr<compress::BucketReducer> reducer;
    std::vector<compress::LayerState> layers;
    QuotaLedger::Charge charge;
  };
  auto retired = std::make_shared<Retired>();
  retired->reducer = std::move(reducer);
  retired->charge = std::move(charge);
  workshop_.run(
      [retired] {
        retired->layers = retired->reducer->take_state();
        retired->reducer.reset();
      },
      [retired, job, bucket, wanted, weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && *wanted) {
          retired->charge.reset();
          self->keep(job, bucket, std::move(retired->layers));
        }
      });
}

void ResidualStore::keep(const JobIdentity& identity, const std::string& bucket,
                         std::vector<compress::LayerState> layers) {
  if (closed_ || layers.empty()) {
    return;
  }
  Job& job = job_of(identity);
  if (job.epochs == 0 && ttl_.count() == 0) {
    return;
  }
  Kept kept;
  kept.bytes = bytes_of(layers);
  const std::array<uint64_t, 1> parts = {kept.bytes};
  auto charges = charge_bytes(identity.uid, parts, "kept residuals of " + bucket_text(bucket));
  if (!charges.ok()) {
    log_warning("residuals_dropped", {{"job", identity.name}, {"cause", charges.status().message()}});
    return;
  }
  kept.bucket = bucket;
  kept.layers = std::move(layers);
  kept.age = ++last_age_;
  kept.charge = std::move(charges->front());
  job.kept.push_back(std::move(kept));
  if (job.epochs == 0) {
    start_expiry(identity, job);
  }
}

std::vector<compress::StateSection> ResidualStore::copy(const JobIdentity& identity) const {
  std::vector<compress::StateSection> sections;
  if (const auto found = jobs_.find(identity); found != jobs_.end()) {
    for (const Kept& kept : found->second.kept) {
      sections.push_back({kept.bucket, kept.layers});
    }
  }
  return sections;
}

Status ResidualStore::replace(const JobIdentity& identity, std::vector<compress::StateSection> sections) {
  std::erase_if(sections, [](const compress::StateSection& section) { return section.layers.empty(); });
  std::vector<uint64_t> parts;
  parts.reserve(sections.size());
  for (const compress::StateSection& section : sections) {
    parts.push_back(bytes_of(section.layers));
  }
  const uint64_t bytes = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  Job& job = job_of(identity);
  if (quotas_->fits_bytes(identity.uid, bytes, droppable_bytes(identity.uid))) {
    job.kept.clear();  // before those of other jobs have to give way
  }
  auto charges = charge_bytes(identity.uid, parts, "the compression state that is loaded");
  GRADWIRE_RETURN_IF_ERROR(charges.status());
  for (size_t i = 0; i < sections.size(); ++i) {
    job.kept.push_back({std::move(sections[i].bucket), std::move(sections[i].layers), parts[i], ++last_age_,
                        std::move((*charges)[i])});
  }
  return ok_status();
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

bool ResidualStore::drop_oldest(uint32_t uid) {
  Job* owner = nullptr;
  const JobIdentity* identity = nullptr;
  for (auto& [each, job] : jobs_) {
    if (each.uid == uid && !job.kept.empty() &&
        (owner == nullptr || job.kept.front().age < owner->kept.front().age)) {
      owner = &job;
      identity = &each;
    }
  }
  if (owner == nullptr) {
    return false;
  }
  log_warning("residuals_dropped", {{"job", identity->name},
                                    {"bucket", owner->kept.front().bucket},
                                    {"bytes", std::to_string(owner->kept.front().bytes)},
                                    {"cause", "the user's quotas.bytes_per_user is needed for buckets"}});
  owner->kept.pop_front();
  return true;
}

Result<std::vector<QuotaLedger::Charge>> ResidualStore::charge_bytes(uint32_t uid,
                                                                     std::span<const uint64_t> parts,
                                                                     const std::string& formula) {
  const uint64_t bytes = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  const bool can_help = quotas_->fits_bytes(uid, bytes, droppable_bytes(uid));
  while (true) {
    auto charges = quotas_->charge_bytes(uid, parts, formula);
    if (charges.ok() || !can_help || !drop_oldest(uid)) {
      return charges;
    }
  }
}

uint64_t ResidualStore::droppable_bytes(uint32_t uid) const {
  uint64_t bytes = 0;
  for (const auto& [identity, job] : jobs_) {
    for (const Kept& kept : job.kept) {
      bytes += identity.uid == uid ? kept.bytes : 0;
    }
  }
  return bytes;
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
