#include "daemon/control/ucx_log.h"

#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "daemon/control/log.h"

namespace gradwire::control {
namespace {

ucs_log_func_rc_t to_our_log(const char*, unsigned, const char*, ucs_log_level_t level,
                             const ucs_log_component_config_t*, const char* message, va_list arguments) {
  if (level == UCS_LOG_LEVEL_FATAL || level > UCS_LOG_LEVEL_WARN) {
    return UCS_LOG_FUNC_RC_CONTINUE;  // the process ends with it, or the user asked for it
  }
  std::array<char, 512> line;
  std::vsnprintf(line.data(), line.size(), message, arguments);
  if (level == UCS_LOG_LEVEL_ERROR) {
    log_error("ucx", {{"message", line.data()}});
  } else {
    log_warning("ucx", {{"message", line.data()}});
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void take_ucx_log() {
  const char* const file = std::getenv("UCX_LOG_FILE");
  if (file == nullptr || std::strcmp(file, "stderr") == 0) {
    ucs_log_push_handler(to_our_log);
  }
}

}  // namespace gradwire::control
