// The order in which large documents are taken: each connection of an io_context has one at most, those who
// wait longest come first, and between one and the next everything else that is ready has its turn. So many
// large documents at once delay heartbeats and other connections by one of them, not by all.
//
// What is not large needs no order: of it one pass over the ready sockets brings 16 KiB a connection at most.
//
// A service of the io_context (asio::use_service), on its thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/execution/context.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/query.hpp>

#include "daemon/control/scheduler.h"

namespace gradwire::control {

class LargeDocuments final : public boost::asio::execution_context::service {
 public:
  // Bytes; what is longer is large. As many as a connection reads at a time.
  static constexpr size_t kLarge = 16384;

  // Not inline: where g++ 12 sees the bound, it warns of what a short string's own buffer cannot hold.
  [[gnu::noinline]] static bool is_large(const std::string& text) { return text.size() > kLarge; }

  using key_type = LargeDocuments;
  static inline boost::asio::execution_context::id id;

  explicit LargeDocuments(boost::asio::execution_context& context)
      : service(context), context_(static_cast<boost::asio::io_context&>(context)) {}

  // Of the io_context that a socket or timer works on.
  template <typename Executor>
  static LargeDocuments& of(const Executor& executor) {
    return boost::asio::use_service<LargeDocuments>(
        boost::asio::query(executor, boost::asio::execution::context));
  }

  // Calls `turn` once, never from inside this call.
  void wait(Work turn) {
    waiting_.push_back(std::move(turn));
    if (waiting_.size() == 1) {
      call_next();
    }
  }

 private:
  void shutdown() override { waiting_.clear(); }

  // What is posted runs after the sockets and timers were looked at once more.
  void call_next() {
    boost::asio::post(context_, [this] {
      const Work turn = std::move(waiting_.front());
      turn();
      waiting_.pop_front();
      if (!waiting_.empty()) {
        call_next();
      }
    });
  }

  boost::asio::io_context& context_;
  std::deque<Work> waiting_;  // the first one is posted
};

}  // namespace gradwire::control
