// Signs of life from a daemon that has a long time to answer: a join waits for other ranks, so its silence
// says nothing. Asks over a connection of its own, which any version of the daemon answers.
#pragma once

#include <cstdint>
#include <string>

#include "client/wire/unique_fd.h"

namespace gradwire::client {

class Probe {
 public:
  Probe(std::string path, int64_t interval_ms)
      : path_(std::move(path)), interval_ns_(interval_ms * 1'000'000) {}

  // Asks when it is time and hears what has been answered; never blocks. Returns how many signs have come.
  uint64_t look(int64_t now_ns);

 private:
  void ask();

  std::string path_;
  int64_t interval_ns_;
  int64_t next_ns_ = 0;  // 0: the first look has not been
  uint64_t signs_ = 0;
  wire::UniqueFd socket_;  // while a question is open
};

}  // namespace gradwire::client
