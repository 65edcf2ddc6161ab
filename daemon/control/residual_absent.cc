// Residuals that are neither in a rank's bucket nor in the store, and who waits for them.
#include <algorithm>

#include "daemon/control/manifest.h"
#include "daemon/control/residual_store.h"

namespace gradwire::control {
namespace {

// Longer than the engine is asked to remove a bucket whose last messages are on their way.
constexpr Nanoseconds kHomeAtLast = std::chrono::seconds(11);
constexpr Nanoseconds kHomeSoon = std::chrono::milliseconds(1);
constexpr Nanoseconds kHomeLater = std::chrono::milliseconds(32);

}  // namespace

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

struct ResidualStore::Awaited {
  Absent absent;
  Nanoseconds deadline{};
  Nanoseconds pause = kHomeSoon;
  std::function<void(const Status&)> done;
};

void ResidualStore::when_home(Absent absent, const std::function<void(const Status&)>& done) {
  look_home(
      std::make_shared<Awaited>(Awaited{std::move(absent), scheduler_.now() + kHomeAtLast, kHomeSoon, done}));
}

// More and more rarely: what is not home at once waits for messages to other nodes.
void ResidualStore::look_home(const std::shared_ptr<Awaited>& awaited) {
  std::erase_if(awaited->absent, [](const auto& each) { return each.expired(); });
  if (awaited->absent.empty()) {
    awaited->done(ok_status());
    return;
  }
  if (scheduler_.now() < awaited->deadline) {
    scheduler_.after(awaited->pause, [weak = weak_from_this(), awaited] {
      if (const auto self = weak.lock()) {
        self->look_home(awaited);
      }
    });
    awaited->pause = std::min(2 * awaited->pause, kHomeLater);
    return;
  }
  const Away away = awaited->absent.front().lock();
  awaited->done(Status(
      Code::kUnavailable,
      "the residuals of " + bucket_text(away ? *away : "") + " did not come back from the engine within " +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(kHomeAtLast).count()) +
          " s after it was destroyed, its last messages to other nodes are still on their way: try again "
          "when the network moves"));
}

}  // namespace gradwire::control
