// What the store's residuals are charged with: admission, replacement, and what gives way to whom.
#include <algorithm>
#include <numeric>

#include "daemon/control/log.h"
#include "daemon/control/residual_store.h"

namespace gradwire::control {

Result<AdmittedState> ResidualStore::admit(const JobIdentity& identity, uint64_t bytes) {
  const std::array<uint64_t, 1> parts = {bytes};
  auto charges = charge(identity.uid, parts,
                        {"a compression state that is loaded", Holding::kLoading, &job_of(identity), 0});
  GRADWIRE_RETURN_IF_ERROR(charges.status());
  return AdmittedState{bytes, std::move(charges->front())};
}

Status ResidualStore::replace(const JobIdentity& identity, std::vector<compress::StateSection>&& sections,
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

}  // namespace gradwire::control
