#include "daemon/control/state_load.h"

#include <algorithm>
#include <utility>

#include "compress/state_layout.h"

namespace gradwire::control {
namespace {

// To the trainer it is its argument that is wrong.
Status as_argument(const Status& status) {
  return status.code() == Code::kCorrupt ? Status(Code::kInvalidArgument, status.message()) : status;
}

}  // namespace

StateLoad::StateLoad(NodeContext& node, JobIdentity job)
    : node_(node),
      job_(std::move(job)),
      large_(std::make_shared<Large>(Large{{}, compress::StateReader([this](uint64_t bytes) {
                                             auto admitted = node_.residuals->admit(job_, bytes);
                                             GRADWIRE_RETURN_IF_ERROR(admitted.status());
                                             large_->admitted = std::move(*admitted);
                                             return ok_status();
                                           })})),
      header_left_(compress::state_layout::kHeaderBytes) {}

void StateLoad::put(uint64_t bytes, const Answer& done) {
  if (bytes > StateWindow::kBytes) {
    done(Status(Code::kInvalidArgument, std::to_string(bytes) + " bytes are more than the window's " +
                                            std::to_string(StateWindow::kBytes)));
    return;
  }
  // On this thread, because what the header promises is admitted by the store.
  const uint64_t head = std::min(bytes, header_left_);
  header_left_ -= head;
  if (const Status begun = large_->reader.feed(window_.bytes().first(head)); !begun.ok()) {
    done(as_argument(begun));
    return;
  }
  busy_ = true;
  const auto status = std::make_shared<Status>();
  node_.workshop.run(
      [self = shared_from_this(), head, bytes, status] {
        *status = self->large_->reader.feed(self->window_.bytes().first(bytes).subspan(head));
      },
      [self = shared_from_this(), status, done] {
        self->busy_ = false;
        if (self->cancelled_) {
          self->discard();
          return;
        }
        done(as_argument(*status));
      });
}

Result<StateLoad::Complete> StateLoad::finish() {
  if (const Status status = large_->reader.finish(); !status.ok()) {
    return as_argument(status);
  }
  return Complete{large_->reader.take(), std::move(large_->admitted)};
}

void StateLoad::cancel() {
  cancelled_ = true;
  if (!busy_) {
    discard();
  }
}

void StateLoad::discard() {
  release_in(node_.workshop, std::exchange(large_, nullptr));
}

}  // namespace gradwire::control
