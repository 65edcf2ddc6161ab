// What each user holds on this node, and what he may. Any thread: buckets are freed by the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "config/base/result.h"
#include "config/config.h"

namespace gradwire::control {

class QuotaLedger : public std::enable_shared_from_this<QuotaLedger> {
 public:
  explicit QuotaLedger(const config::QuotaOptions& limits) : limits_(limits) {}

  // Charges until the returned object is gone. `formula` shows how `bytes` came about.
  Result<std::shared_ptr<void>> charge_bytes(uint32_t uid, uint64_t bytes, const std::string& formula) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = bytes_[uid];
    if (bytes > limits_.bytes_per_user || held > limits_.bytes_per_user - bytes) {
      return Status(Code::kResourceExhausted,
                    "user " + std::to_string(uid) + " holds " + std::to_string(held) +
                        " bytes and asks for " + std::to_string(bytes) + " more (" + formula +
                        "); quotas.bytes_per_user is " + std::to_string(limits_.bytes_per_user));
    }
    held += bytes;
    return token([self = shared_from_this(), uid, bytes] { self->release(self->bytes_, uid, bytes); });
  }

  Result<std::shared_ptr<void>> charge_job(uint32_t uid) {
    const std::lock_guard lock(mutex_);
    uint64_t& held = jobs_[uid];
    if (held >= limits_.jobs_per_user) {
      return Status(Code::kResourceExhausted, "user " + std::to_string(uid) + " has " + std::to_string(held) +
                                                  " jobs on this node; quotas.jobs_per_user is " +
                                                  std::to_string(limits_.jobs_per_user));
    }
    ++held;
    return token([self = shared_from_this(), uid] { self->release(self->jobs_, uid, 1); });
  }

  uint32_t buckets_per_job() const { return limits_.buckets_per_job; }

 private:
  using Held = std::map<uint32_t, uint64_t>;

  template <typename Release>
  static std::shared_ptr<void> token(Release release) {
    static char held;  // any address that is not null: a token is true
    return std::shared_ptr<void>(&held, [release](void*) { release(); });
  }
  void release(Held& held, uint32_t uid, uint64_t amount) {
    const std::lock_guard lock(mutex_);
    if ((held[uid] -= amount) == 0) {
      held.erase(uid);
    }
  }

  config::QuotaOptions limits_;
  std::mutex mutex_;
  Held bytes_, jobs_;
};

}  // namespace gradwire::control
