// A trainer saves and loads its job's compression state (docs/control-protocol.md, "Compression state").
#include <utility>

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
    after_workshop([id](Session& self) { self.send_({{"type", "ok"}, {"id", id}}, {}); });
  }
}

void Session::after_workshop(std::function<void(Session&)> then) {
  asking_ = true;
  node_.workshop.run([] {},
                     [weak = weak_from_this(), then = std::move(then)] {
                       if (const auto self = weak.lock(); self && !self->closed_) {
                         self->asking_ = false;
                         then(*self);
                         self->close_if_asked();
                       }
                     });
}

// A trainer that has stopped waiting for an answer lets go of the transfer: at once after that answer.
void Session::close_if_asked() {
  if (!closed_ && !asking_ && closing_) {
    const uint64_t id = *closing_;
    closing_.reset();
    dispatch(id, "state_close", Json::object());
  }
}

void Session::end_state() {
  if (save_) {
    std::exchange(save_, nullptr)->cancel();
  }
  if (load_) {
    std::exchange(load_, nullptr)->cancel();
  }
}

void Session::fail_state(uint64_t id, const Status& status) {
  end_state();
  after_workshop([id, status](Session& self) { self.fail(id, status); });
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
  after_workshop([id, save = direction == "save"](Session& self) { self.begin_state(id, save); });
}

void Session::begin_state(uint64_t id, bool save) {
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
  if (save) {
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
  load_ = std::make_shared<StateLoad>(node_, member_->identity());
  asking_ = true;
  load_->open(opened);
}

void Session::next_of_state(uint64_t id) {
  if (!save_) {
    fail_state(id, Status(Code::kInvalidArgument, "no compression state is being saved: state_open first"));
    return;
  }
  asking_ = true;
  save_->next(later([id](Session& self, const Result<StateSave::Part>& part) {
    self.asking_ = false;
    if (!part.ok()) {
      self.fail_state(id, part.status());
      return;
    }
    const Json answer = {{"type", "state_part"}, {"id", id}, {"bytes", part->bytes}, {"last", part->last}};
    if (!part->last) {
      self.send_(answer, {});
      return;
    }
    self.end_state();
    self.after_workshop([answer](Session& session) { session.send_(answer, {}); });
  }));
}

void Session::put_state(uint64_t id, const Json& document) {
  Fields fields(document);
  const auto bytes = fields.number("bytes", 0, StateWindow::kBytes);
  const bool last = fields.flag("last");
  if (!load_ || !fields.ok()) {
    fail_state(id, !fields.ok() ? fields.status()
                                : Status(Code::kInvalidArgument,
                                         "no compression state is being loaded: state_open first"));
    return;
  }
  asking_ = true;
  load_->put(bytes, later([id, last](Session& self, const Status& status) {
               if (status.ok() && last) {
                 self.member_->before_load(self.later(
                     [id](Session& session, const Status& ready) { session.finish_load(id, ready); }));
                 return;
               }
               self.asking_ = false;
               if (!status.ok()) {
                 self.fail_state(id, status);
                 return;
               }
               self.send_({{"type", "ok"}, {"id", id}}, {});
             }));
}

void Session::finish_load(uint64_t id, const Status& ready) {
  asking_ = false;
  Status taken = ready;
  if (taken.ok()) {
    auto complete = load_->finish();
    taken = complete.status();
    if (complete.ok()) {
      auto sections = std::make_shared<std::vector<compress::StateSection>>(std::move(complete->sections));
      taken = member_->load_state(std::move(*sections), std::move(complete->admitted));
      release_in(node_.workshop, std::move(sections));  // gigabytes, if they were refused
    }
  }
  if (!taken.ok()) {
    fail_state(id, taken);
    return;
  }
  end_state();
  after_workshop([id](Session& self) { self.send_({{"type", "ok"}, {"id", id}}, {}); });
}

}  // namespace gradwire::control
