// One at a time, in the order of asking. On the control thread.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace gradwire::control {

class Turns {
 public:
  // `begin` is called when it is its turn, maybe at once. Whoever was called must end() it, whatever happens.
  void ask(std::function<void()> begin) {
    waiting_.push_back(std::move(begin));
    next();
  }
  void end() {
    taken_ = false;
    next();
  }
  bool taken() const { return taken_; }

 private:
  void next() {
    while (!taken_ && !waiting_.empty()) {
      const auto begin = std::move(waiting_.front());
      waiting_.pop_front();
      taken_ = true;
      begin();
    }
  }

  std::deque<std::function<void()>> waiting_;
  bool taken_ = false;
};

}  // namespace gradwire::control
