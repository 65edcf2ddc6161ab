// The memory through which a compression state goes between a trainer and its daemon: a sealed memfd of the
// daemon's, so that no descriptor of a trainer's is ever taken.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "daemon/control/node_context.h"

namespace gradwire::control {

class StateWindow {
 public:
  static constexpr uint64_t kBytes = uint64_t{1} << 20;

  // Charged to the user until nobody has it any more. `done` has the memory, for its descriptor.
  void open(NodeContext& node, uint32_t uid, Holding holding,
            const Reply<std::shared_ptr<SharedMemory>>& done) {
    auto charge = node.quotas->charge_bytes(uid, kBytes, "a window for the compression state", holding);
    if (!charge.ok()) {
      done(charge.status());
      return;
    }
    auto memory = SharedMemory::create("state", kBytes, Access::kBoth);
    if (memory.ok()) {
      (*memory)->keep(node.quotas->until_gone((*memory)->fd()->get(), uid, kBytes, std::move(*charge)));
      memory_ = *memory;
    }
    done(memory);
  }
  // What the trainer may be changing at this moment.
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_->data()), kBytes}; }

 private:
  std::shared_ptr<SharedMemory> memory_;
};

}  // namespace gradwire::control
