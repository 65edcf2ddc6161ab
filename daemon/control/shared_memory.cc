#include "daemon/control/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>

#include "daemon/engine/plain_bytes.h"

namespace gradwire::control {
namespace {

Status failed(const std::string& name, uint64_t bytes, const char* call, int error) {
  return Status(Code::kResourceExhausted, std::to_string(bytes) + " bytes of shared memory for " + name +
                                              " are not to be had: " + call + ": " + std::strerror(error) +
                                              "; use fewer or smaller buckets, or raise the memory limits");
}

// fallocate() on a memfd goes on until the kernel kills somebody, so what is not there is refused before.
uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") {
      return kibibytes * 1024;
    }
    std::getline(file, unit);
  }
  return UINT64_MAX;  // nothing is known
}

int allocate(int fd, uint64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

uint64_t page_rounded(uint64_t bytes) {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (std::max<uint64_t>(bytes, 1) + page - 1) / page * page;
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::create(const std::string& name, uint64_t bytes,
                                                           Access access) {
  const uint64_t rounded = page_rounded(bytes);
  if (const uint64_t available = available_memory(); bytes > available || rounded > available) {
    return Status(Code::kResourceExhausted,
                  std::to_string(bytes) + " bytes of shared memory for " + name + " are asked for and " +
                      std::to_string(available) +
                      " bytes of memory are available; use fewer or smaller buckets");
  }
  wire::UniqueFd fd(
      memfd_create(("gradwire:" + name).substr(0, 200).c_str(), MFD_ALLOW_SEALING | MFD_CLOEXEC));
  if (!fd.valid()) {
    return failed(name, rounded, "memfd_create", errno);
  }
  if (allocate(fd.get(), rounded) != 0) {
    return failed(name, rounded, "fallocate", errno);
  }
  void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return failed(name, rounded, "mmap", errno);
  }
  // From here on the destructor unmaps.
  std::shared_ptr<SharedMemory> memory(
      new SharedMemory(std::make_shared<wire::UniqueFd>(std::move(fd)), data, rounded));
  // FUTURE_WRITE first: SEAL forbids more seals. Our writable mapping is older and stays.
  const int seals =
      F_SEAL_SHRINK | F_SEAL_GROW | (access == Access::kReadOnly ? F_SEAL_FUTURE_WRITE : 0) | F_SEAL_SEAL;
  if (fcntl(memory->fd()->get(), F_ADD_SEALS, seals) != 0) {
    return failed(name, rounded, "F_ADD_SEALS", errno);
  }
  return memory;
}

SharedMemory::~SharedMemory() {
  munmap(data_, bytes_);
}

SessionMemory::~SessionMemory() {
  if (daemon_bell.valid()) {
    reaper->end(daemon_bell.release(), uid);
  }
}

Result<std::shared_ptr<SessionMemory>> make_session_memory(uint32_t rank, uint32_t world, uint64_t generation,
                                                           std::shared_ptr<SocketReaper> reaper,
                                                           uint32_t uid) {
  auto memory = SharedMemory::create("session", layout::kSessionBytes, Access::kBoth);
  if (!memory.ok()) {
    return memory.status();
  }
  auto session = std::make_shared<SessionMemory>();
  session->memory = std::move(*memory);
  session->reaper = std::move(reaper);
  session->uid = uid;
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(Code::kResourceExhausted,
                  std::string("no descriptors for a session are to be had: socketpair: ") +
                      std::strerror(errno) + "; raise LimitNOFILE");
  }
  refuse_descriptors(ends[0]);
  engine::keep_urgent_in_line(ends[0]);
  session->daemon_bell.reset(ends[0]);
  session->trainer_bell = std::make_shared<wire::UniqueFd>(ends[1]);
  auto* header = new (session->memory->data()) layout::SessionHeader{};
  header->magic = layout::kSessionMagic;
  header->layout_version = layout::kLayoutVersion;
  header->ring_capacity = layout::kRingCapacity;
  header->total_bytes = session->memory->bytes();
  header->generation = generation;
  header->submission_offset = layout::kSubmissionOffset;
  header->completion_offset = layout::kCompletionOffset;
  header->rank = rank;
  header->world = world;
  return session;
}

void refuse_descriptors(int socket) {
  constexpr int kSoPassRights = 83;  // SO_PASSRIGHTS
  const int off = 0;
  (void)setsockopt(socket, SOL_SOCKET, kSoPassRights, &off, sizeof(off));
}

}  // namespace gradwire::control
