// What all jobs of this daemon share, and what a trainer is told.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/control/cost_book.h"
#include "daemon/control/documents.h"
#include "daemon/control/engine_port.h"
#include "daemon/control/link.h"
#include "daemon/control/pasts.h"
#include "daemon/control/quota.h"
#include "daemon/control/residual_store.h"
#include "daemon/control/shared_memory.h"
#include "daemon/control/turns.h"

namespace gradwire::control {

class Member;

template <typename T>
using Reply = std::function<void(const Result<T>&)>;
using Answer = std::function<void(const Status&)>;

struct NodeContext {
  Scheduler& scheduler;
  EnginePort& engine;
  Workshop& workshop;
  std::shared_ptr<QuotaLedger> quotas;
  NodeInfo self;
  Nanoseconds peer_timeout{};
  Nanoseconds operation_timeout{};
  // To the coordinating daemon, for user `uid`; empty = this one. kUnavailable: trying again may help.
  std::function<void(const std::string& rendezvous, uint32_t uid, Reply<LinkPtr> done)> connect;
  // What outlives an epoch; where one is missing, nothing of its kind is kept.
  std::shared_ptr<ResidualStore> residuals = nullptr;
  std::shared_ptr<PastStore> pasts = nullptr;
  // Without one this node measures nothing.
  std::shared_ptr<CostBook> costs = nullptr;
  // Ends the sockets that a trainer holds the other end of.
  std::shared_ptr<SocketReaper> reaper = std::make_shared<SocketReaper>();
  // Who copies the residuals of a large bucket out of the engine.
  std::shared_ptr<Turns> copy_outs = std::make_shared<Turns>();
  uint64_t last_job = 0;         // ids, within the daemon's life
  uint64_t last_generation = 0;  // of sessions' memory
  uint64_t last_session = 0;
};

struct LocalJoin {
  uint32_t rank = 0;
  uint32_t world = 1;
  int32_t pid = 0;
  uint64_t timeout_ms = 0;
  bool fresh = false;  // GW_JOIN_FRESH: counts for all nodes of the epoch
  Answer aborted;      // the epoch has ended after the rank joined; at most once
  // Which of the daemon's sessions asks; 0: no matter.
  uint64_t session = 0;
  // How long the trainer's process has lived; 0: unknown.
  uint64_t age_ms = 0;
  // Why the trainer is known to be gone though nobody was told yet: "died (pid 12)"; empty while it is there.
  std::function<std::string()> gone = nullptr;
  // Whose member the rank is from here on: once, and again each time that the others form anew.
  std::function<void(const std::shared_ptr<Member>&)> placed = nullptr;
};

struct Joined {
  std::shared_ptr<SessionMemory> session;
  std::vector<uint32_t> local_ranks;
  uint32_t nodes = 1;
  uint64_t epoch = 1;
  std::optional<Past> past;  // of the epoch before
};

struct BucketCreated {
  uint32_t bucket = 0;
  std::string codec;
  uint64_t gradient_bytes = 0, result_bytes = 0;
  std::shared_ptr<wire::UniqueFd> gradient, result;
};

}  // namespace gradwire::control
