// Passes a process's output on, line by line, with a mark in front.
#pragma once

#include <string>

#include "tools/run/process.h"

namespace gradwire::tools {

class LineRelay {
 public:
  LineRelay(UniqueFd from, int to, std::string mark);

  int fd() const { return from_.get(); }
  bool open() const { return from_.get() >= 0; }
  // Reads what is there without waiting, passes whole lines on, closes at the end of the output. False: the
  // reader of our own output has gone.
  bool forward();

 private:
  bool write_lines(bool all);

  UniqueFd from_;
  int to_;
  std::string mark_;
  std::string pending_;
};

// Writes all of `text`; false if the reader has gone.
bool write_all(int fd, const std::string& text);

}  // namespace gradwire::tools
