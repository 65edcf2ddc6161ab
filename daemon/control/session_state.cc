// A trainer saves and loads its job's compression state (docs/control-protocol.md, "Compression state").
#include "daemon/control/session.h"
#include "daemon/control/state_load.h"
#include "daemon/control/state_save.h"

namespace gradwire::control {

bool Session::is_state_request(std::string_view type) {
  return type == "state_open" || type == "state_next" || type == "state_put" || type == "state_close";
}

void Session::state_request(uint64_t id, const std::string& type, const Json& document) {
  if (type == "state_open") {
    open_state(id, document);
  } else if (type == "state_next") {
    next_of_state(id);
  } else if (type == "state_put") {
    put_state(id, document);
  } else {
    end_state();
    send_({{"type", "ok"}, {"id", id}}, {});
  }
}

void Session::end_state() {
  save_ = nullptr;
  load_ = nullptr;
}

void Session::fail_state(uint64_t id, const Status& status) {
  end_state();
  fail(id, status);
}

void Session::open_state(uint64_t id, const Json& document) {
  Fields fields(document);
  const std::string direction = fields.text("direction", 1, 16);
  if (!fields.ok() || (direction != "save" && direction != "load")) {
    fail(id, fields.ok() ? Status(Code::kInvalidArgument,
                                  "state_open: the direction is save or load, not " + clean(direction, 16))
                         : fields.status());
    return;
  }
  end_state();
  const auto opened = later([id](Session& self, const Result<std::shared_ptr<SharedMemory>>& window) {
    self.asking_ = false;
    if (!window.ok()) {
      self.fail_state(id, window.status());
      return;
    }
    self.send_({{"type", "state_opened"}, {"id", id}, {"window_bytes", (*window)->bytes()}},
               {(*window)->fd()});
    (*window)->forget_fd();
  });
  if (direction == "save") {
    auto source = member_->state_source();
    if (!source.ok()) {
      fail(id, source.status());
      return;
    }
    save_ = std::make_shared<StateSave>(node_, std::move(*source));
    asking_ = true;
    save_->open(opened);
    return;
  }
  if (const Status status = member_->may_load_state(); !status.ok()) {
    fail(id, status);
    return;
  }
  load_ = std::make_shared<StateLoad>(node_, uid_);
  asking_ = true;
  load_->open(opened);
}

void Session::next_of_state(uint64_t id) {
  if (!save_) {
    fail(id, Status(Code::kInvalidArgument, "no compression state is being saved: state_open first"));
    return;
  }
  asking_ = true;
  save_->next(later([id](Session& self, const Result<StateSave::Part>& part) {
    self.asking_ = false;
    if (!part.ok()) {
      self.fail_state(id, part.status());
      return;
    }
    if (part->last) {
      self.end_state();
    }
    self.send_({{"type", "state_part"}, {"id", id}, {"bytes", part->bytes}, {"last", part->last}}, {});
  }));
}

void Session::put_state(uint64_t id, const Json& document) {
  Fields fields(document);
  const auto bytes = fields.number("bytes", 0, StateWindow::kBytes);
  const bool last = fields.flag("last");
  if (!load_ || !fields.ok()) {
    fail(id, !fields.ok()
                 ? fields.status()
                 : Status(Code::kInvalidArgument, "no compression state is being loaded: state_open first"));
    return;
  }
  asking_ = true;
  load_->put(bytes, later([id, last](Session& self, const Status& status) {
               self.asking_ = false;
               Status taken = status;
               if (taken.ok() && last) {
                 auto sections = self.load_->finish();
                 taken = sections.ok() ? self.member_->load_state(std::move(*sections)) : sections.status();
                 self.end_state();
               }
               if (!taken.ok()) {
                 self.fail_state(id, taken);
                 return;
               }
               self.send_({{"type", "ok"}, {"id", id}}, {});
             }));
}

}  // namespace gradwire::control
