// The file behind the counters page. The daemon never maps it: whoever truncates a mapped file ends the
// process that touches it next. It keeps the page in memory of its own (the image), writes changes through
// the descriptor, and writes the whole page again where the file was deleted, replaced or cut off.
//
// Not thread-safe: one thread writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/layout/counters_layout.h"
#include "client/wire/unique_fd.h"
#include "config/base/result.h"

namespace gradwire::control {

class CountersFile {
 public:
  explicit CountersFile(const std::string& runtime_dir);
  ~CountersFile();
  CountersFile(const CountersFile&) = delete;
  CountersFile& operator=(const CountersFile&) = delete;

  // kCountersBytes, zero at first. After a change: write().
  std::byte* image() { return image_.get(); }

  // Puts the image into a file of its own, locked, in the place of what a dead daemon left: a page of any
  // version, also one that was cut off. kAlreadyExists: a living daemon holds the page that is there.
  // kInvalidArgument: something else is there, which is not for the daemon to remove. `patience_ms`: readers
  // hold its lock for a moment, too.
  Status install(int patience_ms);
  // Bytes of the image to the file. What fails is noticed by check().
  void write(uint64_t offset, uint64_t bytes);
  // How often the kernel was asked to write, for tests.
  uint64_t calls() const { return calls_; }
  // Is the file there, and whole? If not, it is made again. True: it had to be.
  Result<bool> check();

 private:
  // `replace`: what kind of file is in the place does not matter as long as it is a file or a link.
  Status install(int patience_ms, bool replace);
  bool write_all(int fd, uint64_t offset, uint64_t bytes) const;
  Result<wire::UniqueFd> make_file(const std::string& temporary) const;

  const std::string path_;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> image_;
  wire::UniqueFd fd_;
  bool failed_ = false;  // a write did not succeed
  uint64_t calls_ = 0;
};

}  // namespace gradwire::control
