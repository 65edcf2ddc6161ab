// The Scheduler over Asio's io_context. post() may be called on any thread, the rest on the context's.
#pragma once

#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <map>
#include <memory>

#include "daemon/control/engine_port.h"
#include "daemon/control/scheduler.h"

namespace gradwire::control {

namespace asio = boost::asio;

class AsioScheduler final : public Scheduler {
 public:
  explicit AsioScheduler(asio::io_context& context) : context_(context) {}

  Nanoseconds now() const override {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch());
  }
  uint64_t after(Nanoseconds delay, Work work) override {
    const uint64_t id = ++last_;
    auto timer = std::make_unique<asio::steady_timer>(context_, delay);
    timer->async_wait([this, id, work = std::move(work)](const boost::system::error_code& error) {
      // An expiry that was queued before cancel() comes without an error.
      if (!error && timers_.erase(id) != 0) {
        work();
      }
    });
    timers_.emplace(id, std::move(timer));
    return id;
  }
  void cancel(uint64_t timer) override { timers_.erase(timer); }
  void post(Work work) override { asio::post(context_, std::move(work)); }

 private:
  asio::io_context& context_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::unique_ptr<asio::steady_timer>> timers_;
};

// One thread beside the control thread.
class ThreadWorkshop final : public Workshop {
 public:
  explicit ThreadWorkshop(Scheduler& control) : control_(control), pool_(1) {}
  ~ThreadWorkshop() override { stop(); }
  // Nothing is done any more; what is asked for, also afterwards, is dropped with the workshop.
  void stop() {
    pool_.stop();
    pool_.join();
  }
  void run(Work work, Work then) override {
    asio::post(pool_, [this, work = std::move(work), then = std::move(then)]() mutable {
      work();
      work = nullptr;
      control_.post(std::move(then));
    });
  }

 private:
  Scheduler& control_;
  asio::thread_pool pool_;
};

}  // namespace gradwire::control
