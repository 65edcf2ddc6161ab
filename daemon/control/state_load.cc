#include "daemon/control/state_load.h"

#include <utility>

namespace gradwire::control {
namespace {

// To the trainer it is its argument that is wrong.
Status as_argument(const Status& status) {
  return status.code() == Code::kCorrupt ? Status(Code::kInvalidArgument, status.message()) : status;
}

}  // namespace

StateLoad::StateLoad(NodeContext& node, uint32_t uid)
    : node_(node), uid_(uid), reader_([this](uint64_t bytes) {
        auto charge = node_.quotas->charge_bytes(uid_, bytes, "a compression state that is loaded");
        GRADWIRE_RETURN_IF_ERROR(charge.status());
        charge_ = std::move(*charge);
        return ok_status();
      }) {}

void StateLoad::put(uint64_t bytes, Answer done) {
  if (bytes > StateWindow::kBytes) {
    done(Status(Code::kInvalidArgument, std::to_string(bytes) + " bytes are more than the window's " +
                                            std::to_string(StateWindow::kBytes)));
    return;
  }
  const auto status = std::make_shared<Status>();
  node_.workshop.run([self = shared_from_this(), bytes,
                      status] { *status = self->reader_.feed(self->window_.bytes().first(bytes)); },
                     [status, done = std::move(done)] { done(as_argument(*status)); });
}

Result<std::vector<compress::StateSection>> StateLoad::finish() {
  if (const Status status = reader_.finish(); !status.ok()) {
    return as_argument(status);
  }
  charge_.reset();
  return reader_.take();
}

}  // namespace gradwire::control
