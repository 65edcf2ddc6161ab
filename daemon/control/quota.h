// What each user holds on this node, and what he may. Any thread: buckets are freed by the engine's, limits
// change on a reload.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/base/result.h"
#include "config/config.h"
#include "daemon/control/lingering_memory.h"

namespace gradwire::control {

// What a user's bytes are, for the sentence of a refusal.
enum class Holding { kBuckets, kKept, kSaving, kLoading };

class QuotaLedger : public std::enable_shared_from_this<QuotaLedger> {
 public:
  using Charge = std::shared_ptr<void>;  // lasts until the last copy is gone
  // Of memory that a user's processes keep after its end: pieces. Many times what a job on one node has.
  static constexpr uint64_t kMaxKeptPieces = 16384;

  explicit QuotaLedger(const config::QuotaOptions& limits,
                       std::shared_ptr<LingeringMemory> lingering = std::make_shared<LingeringMemory>())
      : lingering_(std::move(lingering)), limits_(limits) {}

  // For what is charged from now on; nobody loses what he holds.
  void set_limits(const config::QuotaOptions& limits) {
    const std::lock_guard lock(mutex_);
    limits_ = limits;
  }

  // All of the parts or none; each is given back by itself, and nothing is nullptr. `formula` shows how they
  // came about. `credit`: bytes of the user's that go when these have come, and do not stand in their way.
  Result<std::vector<Charge>> charge_bytes(uint32_t uid, std::span<const uint64_t> parts,
                                           const std::string& formula, Holding holding = Holding::kBuckets,
                                           uint64_t credit = 0) {
    const uint64_t bytes = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
    const LingeringMemory::Kept kept = look(uid);
    GRADWIRE_RETURN_IF_ERROR(check_pieces(uid, kept));
    const std::lock_guard lock(mutex_);
    const uint64_t now = held_of(uid) + kept.uncharged;
    const uint64_t rest = now - std::min(credit, now);
    const uint64_t limit = limits_.bytes_per_user;
    if (bytes > limit || rest > limit - bytes) {
      const std::string instead =
          credit == 0 ? " more (" : " more, instead of " + std::to_string(now - rest) + " of them (";
      return Status(Code::kResourceExhausted,
                    "user " + std::to_string(uid) + " holds " + std::to_string(now) + " bytes on this node" +
                        of_what(uid) + of_ended(kept) + " and asks for " + std::to_string(bytes) + instead +
                        formula + "); quotas.bytes_per_user is " + std::to_string(limit) + ": " +
                        (kept.bytes > 0 ? kLetGo : "") + (transfers(uid) ? kWait : "") +
                        "destroy buckets, end other jobs, or raise it in the daemon's configuration");
    }
    std::vector<Charge> charges;
    for (const uint64_t part : parts) {
      charges.push_back(part == 0 ? nullptr : charge(bytes_[static_cast<size_t>(holding)], uid, part));
    }
    return charges;
  }
  Result<Charge> charge_bytes(uint32_t uid, uint64_t bytes, const std::string& formula,
                              Holding holding = Holding::kBuckets, uint64_t credit = 0) {
    auto charges = charge_bytes(uid, std::span<const uint64_t>(&bytes, 1), formula, holding, credit);
    GRADWIRE_RETURN_IF_ERROR(charges.status());
    return std::move(charges->front());
  }

  // For `charge` (nullptr: what counts only once it has ended) of memory that trainers are given:
  // lingering_memory.h.
  Charge until_gone(int memfd, uint32_t uid, uint64_t bytes, Charge charge) {
    return lingering_->until_gone(memfd, uid, bytes, std::move(charge));
  }

  Result<Charge> charge_job(uint32_t uid) {
    const std::lock_guard lock(mutex_);
    return charge_one(jobs_, uid, 0, {"jobs", "", "quotas.jobs_per_user", limits_.jobs_per_user});
  }

  Result<Charge> charge_session(uint32_t uid) {
    const LingeringMemory::Kept kept = look(uid);
    GRADWIRE_RETURN_IF_ERROR(check_pieces(uid, kept));
    const std::lock_guard lock(mutex_);
    if (kept.bytes > limits_.bytes_per_user) {
      return Status(Code::kResourceExhausted, "user " + std::to_string(uid) + " holds " +
                                                  std::to_string(held_of(uid) + kept.uncharged) +
                                                  " bytes on this node" + of_ended(kept) +
                                                  " and asks for 1 more rank; quotas.bytes_per_user is " +
                                                  std::to_string(limits_.bytes_per_user) + ": " + kLetGo +
                                                  "or raise it in the daemon's configuration");
    }
    const uint64_t closing = held(closing_, uid);
    const std::string more = closing == 0 ? ""
                                          : ", and " + std::to_string(closing) +
                                                " ended ones whose sockets still close the descriptors that "
                                                "they were sent,";
    return charge_one(sessions_, uid, closing,
                      {"ranks", more, "quotas.sessions_per_user", limits_.sessions_per_user});
  }

  // Of a socket that is ended and whose closing may take long: it takes the place of a session. Never
  // refused, since it cannot be undone; who holds much of it gets no more sessions.
  Charge charge_closing(uint32_t uid) {
    const std::lock_guard lock(mutex_);
    return charge(closing_, uid, 1);
  }

  uint32_t buckets_per_job() const {
    const std::lock_guard lock(mutex_);
    return limits_.buckets_per_job;
  }
  // What the user is charged for.
  uint64_t held_bytes(uint32_t uid) const {
    lingering_->collect();
    const std::lock_guard lock(mutex_);
    return held_of(uid);
  }
  // Whether the user may hold so much if `freed` of what he holds goes.
  bool fits_bytes(uint32_t uid, uint64_t bytes, uint64_t freed) const {
    const LingeringMemory::Kept kept = look(uid);
    const std::lock_guard lock(mutex_);
    const uint64_t now = held_of(uid) + kept.uncharged;
    const uint64_t rest = now - std::min(freed, now);
    return check_pieces(uid, kept).ok() && bytes <= limits_.bytes_per_user &&
           rest <= limits_.bytes_per_user - bytes;
  }

 private:
  using Held = std::map<uint32_t, uint64_t>;
  struct Kind {
    const char* what;         // is counted: "jobs"
    const std::string& more;  // behind "on this node"
    const char* option;
    uint64_t limit;
  };

  static constexpr std::array<const char*, 4> kHoldings = {
      "buckets", "kept residuals", "saving of compression states", "loading of compression states"};
  static constexpr const char* kWait = "let the saving and loading of compression states end, ";
  static constexpr const char* kLetGo =
      "unmap and close the memory of what has ended, also in forked processes, ";
  static std::string of_ended(const LingeringMemory::Kept& kept) {
    return kept.bytes == 0 ? ""
                           : ", " + std::to_string(kept.bytes) +
                                 " of them memory of ended buckets and sessions that its processes still "
                                 "keep mapped or open,";
  }
  uint64_t held_of(uint32_t uid) const {
    uint64_t all = 0;
    for (const Held& holding : bytes_) {
      all += held(holding, uid);
    }
    return all;
  }
  // " (buckets 8192, kept residuals 4096)": what the charges are for.
  std::string of_what(uint32_t uid) const {
    std::string parts;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (const uint64_t bytes = held(bytes_[i], uid); bytes > 0) {
        parts += (parts.empty() ? "" : ", ") + std::string(kHoldings[i]) + " " + std::to_string(bytes);
      }
    }
    return parts.empty() ? "" : " (" + parts + ")";
  }
  bool transfers(uint32_t uid) const {
    return held(bytes_[static_cast<size_t>(Holding::kSaving)], uid) +
               held(bytes_[static_cast<size_t>(Holding::kLoading)], uid) >
           0;
  }
  // What lingers, after a look at what has gone. Not under the lock: charges come back.
  LingeringMemory::Kept look(uint32_t uid) const {
    lingering_->collect();
    return lingering_->kept(uid);
  }
  // Small pieces would use up what the kernel can watch long before they are many bytes.
  static Status check_pieces(uint32_t uid, const LingeringMemory::Kept& kept) {
    if (kept.pieces < kMaxKeptPieces) {
      return ok_status();
    }
    return Status(Code::kResourceExhausted,
                  "the processes of user " + std::to_string(uid) + " still keep " +
                      std::to_string(kept.pieces) +
                      " pieces of memory of ended buckets and sessions on this node mapped or open; " +
                      std::to_string(kMaxKeptPieces) + " are the most: " + kLetGo + "or end the processes");
  }

  static uint64_t held(const Held& all, uint32_t uid) {
    const auto found = all.find(uid);
    return found == all.end() ? 0 : found->second;
  }
  // One of what is counted by number; `besides` counts, too. Under the lock.
  Result<Charge> charge_one(Held& all, uint32_t uid, uint64_t besides, const Kind& kind) {
    const uint64_t now = held(all, uid);
    if (now + besides >= kind.limit) {
      return Status(Code::kResourceExhausted,
                    "user " + std::to_string(uid) + " has " + std::to_string(now) + " " + kind.what +
                        " on this node" + kind.more + " and asks for 1 more; " + kind.option + " is " +
                        std::to_string(kind.limit) +
                        ": end another job, or raise it in the daemon's configuration");
    }
    return charge(all, uid, 1);
  }

  // `amount`, not 0, until the token is gone, which does not keep the ledger alive: what lingers belongs to
  // the ledger. Under the lock.
  Charge charge(Held& held, uint32_t uid, uint64_t amount) {
    static char any;  // address that is not null: a token is true
    held[uid] += amount;
    return Charge(&any, [weak = weak_from_this(), &held, uid, amount](void*) {
      if (const auto self = weak.lock()) {
        const std::lock_guard lock(self->mutex_);
        const auto found = held.find(uid);
        if ((found->second -= amount) == 0) {
          held.erase(found);
        }
      }
    });
  }

  const std::shared_ptr<LingeringMemory> lingering_;
  config::QuotaOptions limits_;
  mutable std::mutex mutex_;
  std::array<Held, kHoldings.size()> bytes_;
  Held jobs_, sessions_, closing_;
};

}  // namespace gradwire::control
