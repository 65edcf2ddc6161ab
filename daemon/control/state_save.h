// StateSave: the compression state of a job's buckets on this node on its way to a trainer, window by window.
//
// On the control thread. The engine shows its residuals in short turns between operations; bytes are written
// in the workshop. What is copied for it is charged to the user while it is there.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compress/state_format.h"
#include "daemon/control/node_context.h"
#include "daemon/control/state_window.h"

namespace gradwire::control {

class StateSave : public std::enable_shared_from_this<StateSave> {
 public:
  struct Source {
    engine::JobId job = 0;
    uint32_t uid = 0;
    compress::StateOrigin origin;
    std::vector<compress::StateSection> kept;               // of buckets that are gone
    std::vector<std::pair<uint32_t, std::string>> buckets;  // number and name
  };
  struct Part {
    uint64_t bytes = 0;  // at the window's beginning
    bool last = false;
  };

  StateSave(NodeContext& node, Source source) : node_(node), source_(std::move(source)) {}

  // Once, and first: the window that the trainer reads from. kUnavailable: an operation is in flight.
  void open(const Reply<std::shared_ptr<SharedMemory>>& done);
  // Fills the window; one call at a time. After a failure, or the last part, nothing more comes.
  void next(Reply<Part> done);

 private:
  struct Live {  // a bucket of the engine's
    uint32_t bucket = 0;
    std::string name;
    uint64_t operations = 0;  // committed when it was described
    uint64_t elements = 0;    // of its residual
    std::vector<compress::LayerState> layers;
  };

  void describe(const Reply<std::shared_ptr<SharedMemory>>& done);
  void described(const std::shared_ptr<Live>& live, bool all, const Status& status,
                 const Reply<std::shared_ptr<SharedMemory>>& done);
  void opened(const Reply<std::shared_ptr<SharedMemory>>& done);
  void go_on();
  void fetch(const Live& live);
  void copy(std::shared_ptr<std::vector<float>> to, uint64_t from);
  void end(const Result<Part>& part);

  NodeContext& node_;
  Source source_;
  size_t asked_ = 0;  // of source_.buckets
  std::vector<Live> live_;
  size_t kept_ = 0;  // sections before those of live_
  std::unique_ptr<compress::StateWriter> writer_;
  StateWindow window_;
  QuotaLedger::Charge copy_charge_;
  uint64_t filled_ = 0;
  Reply<Part> done_;
};

}  // namespace gradwire::control
