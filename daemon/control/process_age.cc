#include "daemon/control/process_age.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace gradwire::control {
namespace {

constexpr int kFieldsBeforeStart = 19;  // between the name's end and starttime, proc_pid_stat(5)

}  // namespace

uint64_t process_age_ms(int32_t pid) {
  if (pid <= 0) {
    return 0;
  }
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name itself may hold anything
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBeforeStart; ++i) {
    fields >> skipped;
  }
  uint64_t ticks = 0;  // after boot
  timespec now{};
  const int64_t ticks_a_second = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || ticks_a_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return 0;
  }
  const uint64_t started_ms = ticks * 1000 / static_cast<uint64_t>(ticks_a_second);
  const uint64_t now_ms =
      static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
  return std::max<uint64_t>(1, now_ms - std::min(now_ms, started_ms));
}

}  // namespace gradwire::control
