#include "client/src/exit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "client/src/error.h"

namespace gradwire::client {
namespace {

struct Leavers {
  std::mutex mutex;
  std::vector<gw_job*> jobs;
  const pid_t owner = ::getpid();
};

std::atomic<Leavers*> leavers{nullptr};  // never freed: threads may run until the process is gone
std::atomic<bool> registered{false};

// This process's. A forked child starts with none: the parent's may be locked by a thread that is not here.
Leavers* find_leavers() {
  Leavers* const all = leavers.load(std::memory_order_acquire);  // pairs with the exchange below
  return all != nullptr && all->owner == ::getpid() ? all : nullptr;
}

Leavers* make_leavers() {
  auto fresh = std::make_unique<Leavers>();
  Leavers* known = leavers.load(std::memory_order_acquire);  // pairs with the exchange
  while (known == nullptr || known->owner != fresh->owner) {
    if (leavers.compare_exchange_weak(known, fresh.get(), std::memory_order_acq_rel)) {
      return fresh.release();
    }
  }
  return known;
}

bool is_idle(gw_job* job) {
  bool idle = true;
  // Acquire: the caller of another thread has seen what it waited for.
  job->buckets.for_each([&](const gw_bucket* bucket) {
    idle = idle && bucket->state.load(std::memory_order_acquire) == kIdle;
  });
  return idle;
}

// on_exit(3), unlike atexit(3), says how the process ends. The job's memory stays: threads may still use it.
void at_exit(int status, void* /*argument*/) {
  Leavers* const all = find_leavers();
  if (status != 0 || all == nullptr) {
    return;
  }
  const std::unique_lock<std::mutex> lock(all->mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;  // a thread joins or leaves at this moment
  }
  for (gw_job* job : all->jobs) {
    const SideLock submitting(&job->submitting);
    const SideLock waiting(&job->waiting);
    if (submitting.entered() && waiting.entered() && is_idle(job)) {
      (void)at_the_edge([&] { return leave(job); });
    }
  }
}

// The handler outlives a dlclose of the library, so the library does too.
void keep_loaded() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&at_exit), &info) != 0 && info.dli_fname != nullptr) {
    (void)::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace

void leave_at_exit(gw_job* job) {
  Leavers* const all = make_leavers();
  {
    const std::lock_guard<std::mutex> lock(all->mutex);
    all->jobs.push_back(job);
  }
  // Relaxed: only who registers hangs on it. A forked child has its parent's handler.
  if (!registered.exchange(true, std::memory_order_relaxed)) {
    keep_loaded();
    (void)::on_exit(at_exit, nullptr);
  }
}

void forget_at_exit(gw_job* job) {
  if (Leavers* const all = find_leavers(); all != nullptr) {
    const std::lock_guard<std::mutex> lock(all->mutex);
    std::erase(all->jobs, job);
  }
}

}  // namespace gradwire::client
