// StateLoad: a compression state on its way from a trainer into the daemon, window by window.
//
// On the control thread; bytes are read in the workshop. Each byte of the window is loaded once, and nothing
// is believed (compress/state_format.h). What has been read is charged to the user.
#pragma once

#include <memory>
#include <vector>

#include "compress/state_format.h"
#include "daemon/control/node_context.h"
#include "daemon/control/state_window.h"

namespace gradwire::control {

class StateLoad : public std::enable_shared_from_this<StateLoad> {
 public:
  StateLoad(NodeContext& node, uint32_t uid);

  // Once, and first: the window that the trainer writes to.
  void open(const Reply<std::shared_ptr<SharedMemory>>& done) { window_.open(node_, uid_, done); }
  // Takes the first `bytes` of the window; one call at a time.
  void put(uint64_t bytes, Answer done);
  // After the last put(): all that has come, which is charged to nobody from here on.
  Result<std::vector<compress::StateSection>> finish();

 private:
  NodeContext& node_;
  uint32_t uid_;
  StateWindow window_;
  QuotaLedger::Charge charge_;  // by the reader, in the workshop
  compress::StateReader reader_;
};

}  // namespace gradwire::control
