// StateLoad: a compression state on its way from a trainer into the daemon, window by window.
//
// On the control thread; bytes are read, and what is not wanted is freed, in the workshop. Each byte of the
// window is loaded once, and nothing is believed (compress/state_format.h). What has been read is charged to
// the user.
#pragma once

#include <memory>
#include <vector>

#include "compress/state_format.h"
#include "daemon/control/node_context.h"
#include "daemon/control/state_window.h"

namespace gradwire::control {

class StateLoad : public std::enable_shared_from_this<StateLoad> {
 public:
  // There is a store: Member::may_load_state.
  StateLoad(NodeContext& node, JobIdentity job);

  // Once, and first: the window that the trainer writes to.
  void open(const Reply<std::shared_ptr<SharedMemory>>& done) {
    window_.open(node_, job_.uid, Holding::kLoading, done);
  }
  // Takes the first `bytes` of the window; one call at a time.
  void put(uint64_t bytes, const Answer& done);
  // After the last put(): all that has come, and its charge.
  struct Complete {
    std::vector<compress::StateSection> sections;
    AdmittedState admitted;
  };
  Result<Complete> finish();
  // Nobody wants it any more; what has come is freed.
  void cancel();

 private:
  struct Large {  // is freed in the workshop, its charge last
    AdmittedState admitted;
    compress::StateReader reader;
  };

  void discard();

  NodeContext& node_;
  JobIdentity job_;
  StateWindow window_;
  std::shared_ptr<Large> large_;  // the workshop's while busy_
  uint64_t header_left_;          // bytes
  bool busy_ = false, cancelled_ = false;
};

}  // namespace gradwire::control
