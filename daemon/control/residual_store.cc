#include "daemon/control/residual_store.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "daemon/control/log.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

// Longer than the engine is asked to remove a bucket whose last messages are on their way.
constexpr Nanoseconds kHomeAtLast = std::chrono::seconds(11);
constexpr Nanoseconds kHomeSoon = std::chrono::milliseconds(1);

using Residual = std::shared_ptr<const std::vector<float>>;

// Of a residual that is shared: charged until the last who has it lets go.
Residual charged(const Residual& residual, const QuotaLedger::Charge& charge) {
  struct Pinned {
    QuotaLedger::Charge charge;
    Residual residual;  // goes first
  };
  const auto pinned = std::make_shared<const Pinned>(Pinned{charge, residual});
  return {pinned, pinned->residual.get()};
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
    if (layer.residual && counted.insert(layer.residual.get()).second) {
      bytes += layer.residual->size() * sizeof(float);
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

ResidualStore::Away ResidualStore::away(const JobIdentity& identity, const std::string& bucket) {
  Job& job = job_of(identity);
  std::erase_if(job.absent, [](const auto& each) { return each.expired(); });
  Away away = std::make_shared<const std::string>(bucket);
  job.absent.push_back(away);
  return away;
}

ResidualStore::Absent ResidualStore::absent(const JobIdentity& identity) const {
  const auto found = jobs_.find(identity);
  return found == jobs_.end() ? Absent() : found->second.absent;
}

void ResidualStore::when_home(Absent absent, const std::function<void(const Status&)>& done) {
  look_home(std::move(absent), scheduler_.now() + kHomeAtLast, done);
}

void ResidualStore::look_home(Absent absent, Nanoseconds deadline,
                              const std::function<void(const Status&)>& done) {
  std::erase_if(absent, [](const auto& each) { return each.expired(); });
  if (absent.empty()) {
    done(ok_status());
    return;
  }
  if (scheduler_.now() < deadline) {
    scheduler_.after(kHomeSoon, [weak = weak_from_this(), absent = std::move(absent), deadline, done] {
      if (const auto self = weak.lock()) {
        self->look_home(absent, deadline, done);
      }
    });
    return;
  }
  const Away away = absent.front().lock();
  done(Status(
      Code::kUnavailable,
      "the residuals of " + bucket_text(away ? *away : "") + " did not come back from the engine within " +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(kHomeAtLast).count()) +
          " s after it was destroyed, its last messages to other nodes are still on their way: try again "
          "when the network moves"));
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
  if (!*wanted || retired->reducer->residual().empty()) {
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
    std::map<const void*, Residual> shared;
    for (compress::LayerState& layer : sections.back().layers) {
      Residual& residual = shared[layer.residual.get()];
      if (layer.residual && !residual) {
        residual = charged(layer.residual, kept.charge);
      }
      layer.residual = residual;
    }
  }
  return sections;
}

Result<AdmittedState> ResidualStore::admit(const JobIdentity& identity, uint64_t bytes) {
  const std::array<uint64_t, 1> parts = {bytes};
  auto charges = charge(identity.uid, parts,
                        {"a compression state that is loaded", Holding::kLoading, &job_of(identity), 0});
  GRADWIRE_RETURN_IF_ERROR(charges.status());
  return AdmittedState{bytes, std::move(charges->front())};
}

Status ResidualStore::replace(const JobIdentity& identity, std::vector<compress::StateSection> sections,
                              AdmittedState admitted) {
  std::erase_if(sections, [](const compress::StateSection& section) { return section.layers.empty(); });
  std::vector<uint64_t> parts;
  parts.reserve(sections.size());
  for (const compress::StateSection& section : sections) {
    parts.push_back(state_bytes(section.layers));
  }
  Job& job = job_of(identity);
  auto charges = charge(
      identity.uid, parts,
      {"the compression state that is loaded", Holding::kKept, &job, admitted.charge ? admitted.bytes : 0});
  GRADWIRE_RETURN_IF_ERROR(charges.status());
  admitted.charge.reset();
  clear(job);
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

bool ResidualStore::drop_oldest(uint32_t uid, const Asked& asked) {
  Job* owner = nullptr;
  const JobIdentity* identity = nullptr;
  std::deque<Kept>::iterator oldest;
  for (auto& [each, job] : jobs_) {
    if (each.uid != uid || &job == asked.replaced) {
      continue;
    }
    const auto kept =
        std::find_if(job.kept.begin(), job.kept.end(), [](const Kept& one) { return !one.shared(); });
    if (kept != job.kept.end() && (owner == nullptr || kept->age < oldest->age)) {
      owner = &job;
      identity = &each;
      oldest = kept;
    }
  }
  if (owner == nullptr) {
    return false;
  }
  log_warning("residuals_dropped", {{"job", identity->name},
                                    {"bucket", oldest->bucket},
                                    {"bytes", std::to_string(oldest->bytes)},
                                    {"cause", "the user's quotas.bytes_per_user is needed"},
                                    {"for", asked.formula}});
  discard_one(std::move(*oldest));
  owner->kept.erase(oldest);
  return true;
}

void ResidualStore::discard(std::deque<Kept> kept) {
  if (kept.empty()) {
    return;
  }
  for (Kept& each : kept) {
    each.charge.reset();
  }
  release_in(workshop_, std::make_shared<std::deque<Kept>>(std::move(kept)));
}

void ResidualStore::discard_one(Kept kept) {
  std::deque<Kept> one;
  one.push_back(std::move(kept));
  discard(std::move(one));
}

Result<std::vector<QuotaLedger::Charge>> ResidualStore::charge_bytes(uint32_t uid,
                                                                     std::span<const uint64_t> parts,
                                                                     const std::string& formula) {
  return charge(uid, parts, {formula});
}

Result<std::vector<QuotaLedger::Charge>> ResidualStore::charge(uint32_t uid, std::span<const uint64_t> parts,
                                                               const Asked& asked) {
  uint64_t credit = asked.credit;
  if (asked.replaced != nullptr) {
    for (const Kept& kept : asked.replaced->kept) {
      credit += kept.shared() ? 0 : kept.bytes;
    }
  }
  const uint64_t bytes = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  const bool can_help = quotas_->fits_bytes(uid, bytes, credit + droppable_bytes(uid, asked.replaced));
  while (true) {
    auto charges = quotas_->charge_bytes(uid, parts, asked.formula, asked.holding, credit);
    if (charges.ok() || !can_help || !drop_oldest(uid, asked)) {
      return charges;
    }
  }
}

uint64_t ResidualStore::droppable_bytes(uint32_t uid, const Job* except) const {
  uint64_t bytes = 0;
  for (const auto& [identity, job] : jobs_) {
    for (const Kept& kept : job.kept) {
      bytes += identity.uid == uid && &job != except && !kept.shared() ? kept.bytes : 0;
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
