#include "daemon/control/counters_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

#include "daemon/control/place.h"

namespace gradwire::control {
namespace {

using layout::CountersHeader;
using layout::kCountersBytes;

constexpr int kMaxRaces = 100;  // with others that replace the page at the same time
constexpr int kPauseMs = 10;

Status failed(const std::string& path, const char* call, int error) {
  return place_failed(
      "the counters page " + path + " cannot be made: " + call, error,
      error == ENOSPC ? "make room in node.runtime_dir" : "check node.runtime_dir and its permissions");
}

bool same_file(int fd, const std::string& path) {
  struct stat ours {};
  struct stat there {};
  return fstat(fd, &ours) == 0 && lstat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
         ours.st_ino == there.st_ino;
}

Status occupied(const std::string& path, int fd) {
  int32_t pid = 0;
  const bool known = pread(fd, &pid, sizeof(pid), offsetof(CountersHeader, pid)) == sizeof(pid) && pid > 0;
  const std::string process = known ? std::to_string(pid) : std::string("unknown");
  return Status(Code::kAlreadyExists, "another gradwired (pid " + process + ") holds " + path + "; stop it" +
                                          (known ? " (kill " + process + ")" : std::string()) +
                                          " or set another node.runtime_dir");
}

Status foreign(const std::string& path, const char* what) {
  return Status(
      Code::kInvalidArgument,
      path + what + ", and the counters page belongs there; remove it or set another node.runtime_dir");
}

// Nothing there: fine, too.
Status check_place(const std::string& path, bool replace) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode) || (replace && S_ISLNK(info.st_mode))) {
    return ok_status();
  }
  return foreign(path, S_ISDIR(info.st_mode)   ? " is a directory"
                       : S_ISLNK(info.st_mode) ? " is a link"
                                               : " is not a file");
}

// A page of ours, of any version, starts with the magic's letters. A crash may have cut it off anywhere, or
// have left it as long as it was and empty.
bool is_page(int fd) {
  constexpr size_t kLetters = 6;  // "GWRCTN"; the version follows
  uint64_t start = 0;
  struct stat info {};
  const ssize_t bytes = pread(fd, &start, sizeof(start), 0);
  if (bytes < 0 || fstat(fd, &info) != 0) {
    return false;
  }
  const size_t known = std::min<size_t>(static_cast<size_t>(bytes), kLetters);
  const bool blank = start == 0 && info.st_size == static_cast<off_t>(kCountersBytes);
  return blank || std::memcmp(&start, &layout::kCountersMagic, known) == 0;
}

// The exclusive lock of the page that is there. kUnavailable: it is gone or another one by now.
Status lock_old(const std::string& path, int fd, int patience_ms) {
  for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited += kPauseMs) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return failed(path, "flock", errno);
    }
    if (waited >= patience_ms) {
      return occupied(path, fd);
    }
    usleep(kPauseMs * 1000);
  }
  return ok_status();
}

}  // namespace

CountersFile::CountersFile(const std::string& runtime_dir)
    : path_(runtime_dir + "/" + layout::kCountersFile),
      image_(static_cast<std::byte*>(::operator new[](kCountersBytes, std::align_val_t{64})),
             [](std::byte* memory) { ::operator delete[](memory, std::align_val_t{64}); }) {
  std::memset(image_.get(), 0, kCountersBytes);
}

CountersFile::~CountersFile() = default;

bool CountersFile::write_all(int fd, uint64_t offset, uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t written = pwrite(fd, image_.get() + offset, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<uint64_t>(written);
  }
  return true;
}

void CountersFile::write(uint64_t offset, uint64_t bytes) {
  ++calls_;
  failed_ = !write_all(fd_.get(), offset, bytes) || failed_;
}

Result<wire::UniqueFd> CountersFile::make_file(const std::string& temporary) const {
  unlink(temporary.c_str());
  wire::UniqueFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) {
    return failed(path_, "open", errno);
  }
  if (const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(kCountersBytes)); error != 0) {
    return failed(path_, "posix_fallocate", error);
  }
  if (!write_all(fd.get(), 0, kCountersBytes) || fchmod(fd.get(), 0644) != 0 ||
      flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return failed(path_, "write, fchmod or flock", errno);
  }
  return fd;
}

Status CountersFile::install(int patience_ms) {
  return install(patience_ms, false);
}

Status CountersFile::install(int patience_ms, bool replace) {
  const std::string temporary = path_ + "." + std::to_string(getpid());
  Result<wire::UniqueFd> made = make_file(temporary);
  Status status = made.status();
  for (int race = 0; status.ok() && race < kMaxRaces; ++race) {
    status = check_place(path_, replace);
    if (!status.ok()) {
      break;
    }
    // Not O_PATH: it cannot be locked.
    const wire::UniqueFd old(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!old.valid() && errno != ENOENT && errno != ELOOP) {
      status = failed(path_, "open", errno);
      break;
    }
    const bool is_there = old.valid() || errno == ELOOP;
    if (old.valid()) {
      status = lock_old(path_, old.get(), patience_ms);
      if (!status.ok()) {
        break;
      }
      if (!same_file(old.get(), path_)) {
        continue;  // somebody was faster; his page is looked at next
      }
      if (!replace && !is_page(old.get())) {
        status = foreign(path_, " is no counters page");
        break;
      }
    }
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path_.c_str(), is_there ? 0 : RENAME_NOREPLACE) ==
        0) {
      fd_ = std::move(*made);
      failed_ = false;
      return ok_status();
    }
    if (errno != EEXIST) {
      status = failed(path_, "rename", errno);
    }
  }
  unlink(temporary.c_str());
  return status.ok() ? failed(path_, "rename", EBUSY) : status;
}

Result<bool> CountersFile::check() {
  struct stat info {};
  const bool whole = fstat(fd_.get(), &info) == 0 && info.st_size == static_cast<off_t>(kCountersBytes);
  if (whole && !failed_ && same_file(fd_.get(), path_)) {
    return false;
  }
  if (same_file(fd_.get(), path_)) {
    if (ftruncate(fd_.get(), static_cast<off_t>(kCountersBytes)) != 0 ||
        !write_all(fd_.get(), 0, kCountersBytes)) {
      return failed(path_, "ftruncate or write", errno);
    }
    failed_ = false;
    return true;
  }
  if (info.st_nlink == 0) {
    fd_.reset();  // as long as it is open, the deleted page holds the room that its successor needs
  }
  // The place is this daemon's: whatever file was put there meanwhile is not worth more than the page.
  GRADWIRE_RETURN_IF_ERROR(install(0, true));
  return true;
}

}  // namespace gradwire::control
