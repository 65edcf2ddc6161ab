#include "client/src/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "client/src/error.h"
#include "client/src/text.h"

namespace gradwire::client {

Mapping::~Mapping() {
  if (address_ != nullptr) {
    ::munmap(address_, bytes_);
  }
}

gw_status Mapping::map(int fd, uint64_t bytes, bool writable, const char* what) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return fail(GW_ERR_PROTOCOL, say(what, " from gradwired cannot be examined: ", std::strerror(errno)));
  }
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) != bytes || bytes == 0) {
    return fail(GW_ERR_PROTOCOL, say(what, " from gradwired has ", static_cast<int64_t>(status.st_size),
                                     " bytes where ", bytes, " were announced"));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(GW_ERR_PROTOCOL, say(what,
                                     " from gradwired is not sealed against shrinking, so reading it "
                                     "could kill this process"));
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  // Populated: the first touch of fresh shared pages costs ten times a copy.
  void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) {
    return fail(errno == ENOMEM ? GW_ERR_EXHAUSTED : GW_ERR_PROTOCOL,
                say(what, " of ", bytes, " bytes cannot be mapped: ", std::strerror(errno)));
  }
  address_ = address;
  bytes_ = bytes;
  return GW_OK;
}

}  // namespace gradwire::client
