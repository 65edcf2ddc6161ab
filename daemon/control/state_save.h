// StateSave: the compression state of a job's buckets on this node on its way to a trainer, window by window.
//
// On the control thread. The engine shows its residuals in short turns between operations, those of one large
// bucket at a time in the whole daemon; bytes are written, and memory is freed, in the workshop. Whatever is
// held for it is charged to the user as long as it is there.
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
    JobIdentity identity;
    compress::StateOrigin origin;
    std::vector<std::pair<uint32_t, std::string>> buckets;  // number and name
    ResidualStore::Absent absent;  // of buckets that are gone, on their way to the store
    std::shared_ptr<void> saving;  // while it is there, buckets keep their reducers
  };
  struct Part {
    uint64_t bytes = 0;  // at the window's beginning
    bool last = false;
  };

  StateSave(NodeContext& node, Source source)
      : node_(node), source_(std::move(source)), again_(node.scheduler) {}

  // Once, and first: the window that the trainer reads from. kUnavailable: an operation is in flight, or a
  // bucket is not there to be asked.
  void open(const Reply<std::shared_ptr<SharedMemory>>& done);
  // Fills the window; one call at a time. After a failure, or the last part, nothing more comes.
  void next(Reply<Part> done);
  // Nobody wants the rest; what is held for it is freed, and a reply that is due does not come.
  void cancel();

 private:
  struct Live {  // a bucket of the engine's
    uint32_t bucket = 0;
    std::string name;
    const compress::BucketReducer* reducer = nullptr;  // to be told from another one only
    uint64_t operations = 0;                           // committed when it was described
    uint64_t floats = 0;                               // of residual and momentum
    std::vector<QuotaLedger::Charge> charges;          // of the layers' descriptions
    std::vector<compress::LayerState> layers;
  };
  struct Copy {  // of one bucket's residual
    QuotaLedger::Charge charge;
    std::vector<float> values;  // go first
  };
  struct Large {  // is freed in the workshop, its charges last
    std::vector<QuotaLedger::Charge> charges;
    std::vector<compress::StateSection> sections;
    std::unique_ptr<compress::StateWriter> writer;
    std::shared_ptr<Copy> copy;
  };
  using Opened = Reply<std::shared_ptr<SharedMemory>>;

  Status charge(uint64_t bytes, std::vector<QuotaLedger::Charge>& charges);
  void take_kept(const Opened& done);
  void describe(const Opened& done);
  void described(const std::shared_ptr<Live>& live, bool all, const Status& status, const Opened& done);
  void write(const Opened& done);
  void go_on();
  void fetch(const Live& live);
  void make_copy();
  void copy(uint64_t from);
  void copied();
  void end(const Result<Part>& part);
  void end_turn();
  bool gave_up();
  // What goes on with the save when it is called, unless that was cancelled meanwhile.
  template <typename Function>
  auto if_wanted(Function function) {
    return [self = shared_from_this(), function](const auto&... arguments) {
      if (!self->gave_up()) {
        function(*self, arguments...);
      }
    };
  }
  void discard();

  NodeContext& node_;
  Source source_;
  size_t asked_ = 0;  // of source_.buckets
  Timer again_;       // a bucket that is about to get another reducer is asked again
  unsigned tries_ = 0;
  std::vector<Live> live_;
  size_t kept_ = 0;  // sections before those of live_
  std::shared_ptr<Large> large_ = std::make_shared<Large>();
  StateWindow window_;
  uint64_t filled_ = 0;
  Reply<Part> done_;
  bool has_turn_ = false, waits_for_turn_ = false;
  bool busy_ = false, cancelled_ = false;
};

}  // namespace gradwire::control
