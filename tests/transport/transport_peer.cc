// The other process of the UCX tests: transport_peer sink|stream|echo [PAYLOAD_BYTES]
// Writes its address in hexadecimal to stdout, reads the other side's from stdin, and runs until stdin ends.
//   sink    receives
//   stream  sends payloads as fast as its window allows
//   echo    sends every message back, and sleeps while there is nothing to do
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <string>

#include "tests/transport/child_process.h"
#include "tests/transport/transport_harness.h"

namespace gradwire::transport::testing {
namespace {

class Echo : public SendCompletion {
 public:
  Echo(Transport& transport, PeerId peer) : transport_(transport), peer_(peer) {}
  void send_back(std::span<const std::byte> header, std::span<const std::byte> payload) {
    waiting_.push_back({{header.begin(), header.end()}, {payload.begin(), payload.end()}});
    transport_.send(peer_, waiting_.back().header, waiting_.back().payload, this);
  }
  void on_sent(const Status&) override { ++sent_; }
  void drop_sent() {
    for (; sent_ > 0; --sent_) {
      waiting_.pop_front();
    }
  }

 private:
  Transport& transport_;
  PeerId peer_;
  std::deque<Recorder::Seen> waiting_;
  size_t sent_ = 0;
};

int run(const std::string& mode, size_t payload_size) {
  auto made = make_ucx_transport(loopback_options());
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message().c_str());
    return 1;
  }
  Transport& transport = **made;
  Recorder recorder;
  recorder.keep = false;
  transport.set_receiver(&recorder);
  std::cout << to_hex(transport.address()) << std::endl;
  std::string line;
  std::getline(std::cin, line);
  auto peer = transport.connect(from_hex(line));
  if (!peer.ok()) {
    std::fprintf(stderr, "%s\n", peer.status().message().c_str());
    return 1;
  }

  Echo echo(transport, *peer);
  if (mode == "echo") {
    recorder.then = [&](auto header, auto payload) { echo.send_back(header, payload); };
  }
  const auto payload = pattern(payload_size, 1);
  Completions sends;
  uint64_t next = 0;
  for (uint64_t turn = 0; recorder.errors.empty(); ++turn) {
    while (mode == "stream" && next < sends.total + transport.send_window()) {
      transport.send(*peer, bytes_of_value(next), payload, &sends);
      ++next;
    }
    const size_t events = transport.poll();
    echo.drop_sent();
    if (events == 0) {
      ::sched_yield();  // the tests run where cores are few
    }
    const bool sleep = mode == "echo" && events == 0 && transport.arm();
    if (sleep || turn % 1'000 == 0) {
      pollfd waits[2] = {{transport.event_fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      ::poll(waits, 2, sleep ? -1 : 0);
      if (waits[1].revents != 0) {
        break;
      }
    }
  }
  transport.disconnect(*peer);
  return 0;
}

}  // namespace
}  // namespace gradwire::transport::testing

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: transport_peer sink|stream|echo [PAYLOAD_BYTES]\n");
    return 2;
  }
  return gradwire::transport::testing::run(arguments[1],
                                           count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 4'096);
}
