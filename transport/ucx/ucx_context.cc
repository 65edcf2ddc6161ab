#include "transport/ucx/ucx_context.h"

#include <ucs/algorithm/crc.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "transport/ucx/ucx_inventory.h"

namespace gradwire::transport {
namespace ucx_internal {
namespace {

constexpr uint32_t kMagic = 0x31585547;  // "GUX1"
constexpr uint32_t kLargestAddress = 64 * 1024;

struct Frame {
  uint32_t magic, segment_bytes, length, crc;
};

// UCX writes its log to stdout unless told otherwise before main().
ucs_log_func_rc_t log_to_stderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* message, va_list arguments) {
  if (level <= UCS_LOG_LEVEL_WARN) {
    std::array<char, 512> line;
    std::vsnprintf(line.data(), line.size(), message, arguments);
    std::fprintf(stderr, "ucx: %s\n", line.data());
  }
  return UCS_LOG_FUNC_RC_STOP;
}

// What UCX does to a process that loads it, and we do not want unless the user asked for it.
void tame_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!set_by_user("ERROR_SIGNALS") && !set_by_user("HANDLE_ERRORS")) {
      for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
        ucs_debug_disable_signal(signal);
      }
    }
    if (!set_by_user("LOG_FILE") && !set_by_user("LOG_LEVEL")) {
      ucs_log_push_handler(log_to_stderr);
    }
  });
}

using Setting = std::pair<std::string, std::string>;

// ucp_config_modify() takes any name and keeps those that it does not know for the transports. 1.13 looks
// them up there without the transport's prefix; later versions want the prefix, and warn of one name or the
// other.
std::vector<Setting> transport_settings(const UcxOptions& options) {
  const std::string segment = std::to_string(options.segment_bytes);
  std::vector<Setting> settings = {{"TX_SEG_SIZE", segment}, {"RX_SEG_SIZE", segment}};
  if (!set_by_user("TCP_CONN_NB")) {
    // A connection to a host that does not answer must not block the thread.
    settings.emplace_back("CONN_NB", "y");
  }
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  if (std::pair(major, minor) > std::pair(1u, 13u)) {
    for (size_t i = 0, count = settings.size(); i < count; ++i) {
      settings.emplace_back("TCP_" + settings[i].first, settings[i].second);
    }
  }
  return settings;
}

void configure(ucp_config_t* config, const UcxOptions& options) {
  std::vector<Setting> settings = {
      // Zero-copy sends that are cut off by a peer's death can trip an assertion in UCX 1.13.
      {"ZCOPY_THRESH", "inf"},
  };
  settings.emplace_back("TLS", options.tls);
  if (!options.net_devices.empty()) {
    settings.emplace_back("NET_DEVICES", options.net_devices);
  }
  for (const auto& [name, value] : settings) {
    if (!set_by_user(name)) {
      ucp_config_modify(config, name.c_str(), value.c_str());
    }
  }
  for (const auto& [name, value] : transport_settings(options)) {
    ucp_config_modify(config, name.c_str(), value.c_str());
  }
}

}  // namespace

Status status_of(ucs_status_t status, std::string_view doing) {
  Code code = Code::kUnavailable;
  switch (status) {
    case UCS_OK:
      return ok_status();
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      code = Code::kResourceExhausted;
      break;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      code = Code::kInvalidArgument;
      break;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      code = Code::kUnsupported;
      break;
    case UCS_ERR_CANCELED:
      code = Code::kAborted;
      break;
    default:
      break;
  }
  return {code, std::string(doing) + ": UCX says '" + ucs_status_string(status) + "'"};
}

Result<ucp_context_h> create_context(const UcxOptions& options) {
  if (options.segment_bytes < 8 * 1024 || options.segment_bytes > 1024 * 1024) {
    return Status(Code::kInvalidArgument, "segment_bytes is " + std::to_string(options.segment_bytes) +
                                              ", but must be 8,192 to 1,048,576: 131,072 suits tcp");
  }
  tame_process();
  const auto inventory = read_inventory();
  GRADWIRE_RETURN_IF_ERROR(inventory.status());
  GRADWIRE_RETURN_IF_ERROR(check_options(options, *inventory));
  for (const auto& [name, value] : options.overrides) {
    ::setenv(("UCX_" + name).c_str(), value.c_str(), /*overwrite=*/0);
  }
  ucp_config_t* config = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return status_of(status, "cannot read UCX's configuration; check the UCX_* variables");
  }
  configure(config, options);

  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.name = "gradwire";
  ucp_context_h context = nullptr;
  const auto status = ucp_init(&parameters, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) {
    return status_of(status, "cannot use the network with transports '" + options.tls + "' on devices '" +
                                 (options.net_devices.empty() ? "any" : options.net_devices) +
                                 "' (ucx_info -d lists what there is)");
  }
  return context;
}

std::string frame_address(std::string_view worker_address, uint32_t segment_bytes) {
  const Frame frame{kMagic, segment_bytes, static_cast<uint32_t>(worker_address.size()),
                    ucs_crc32(0, worker_address.data(), worker_address.size())};
  std::string framed(sizeof(frame), '\0');
  std::memcpy(framed.data(), &frame, sizeof(frame));
  framed += worker_address;
  return framed;
}

Result<std::string_view> unframe_address(std::string_view framed, uint32_t segment_bytes) {
  const auto refuse = [](Code code, std::string reason) {
    return Status(code, "cannot connect: " + std::move(reason));
  };
  Frame frame{};
  if (framed.size() < sizeof(frame)) {
    return refuse(Code::kCorrupt, "the peer's address has " + std::to_string(framed.size()) +
                                      " bytes, fewer than any address has");
  }
  std::memcpy(&frame, framed.data(), sizeof(frame));
  const std::string_view body = framed.substr(sizeof(frame));
  if (frame.magic != kMagic) {
    return refuse(Code::kCorrupt, "the peer's address is not one of a Gradwire transport over UCX");
  }
  if (frame.length != body.size() || frame.length == 0 || frame.length > kLargestAddress ||
      frame.crc != ucs_crc32(0, body.data(), body.size())) {
    return refuse(Code::kCorrupt, "the peer's address is damaged (length or checksum)");
  }
  if (frame.segment_bytes != segment_bytes) {
    return refuse(Code::kMismatch, "the peer's segments have " + std::to_string(frame.segment_bytes) +
                                       " bytes, ours " + std::to_string(segment_bytes) +
                                       "; set the same segment size on all nodes");
  }
  return body;
}

std::string lane_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) {
    return {};
  }
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::string lane;
  // "lane[0]:  1:tcp/eth0.0 md[1] ..."
  if (const char* at = std::strstr(text, "lane[0]:"); at != nullptr) {
    std::string_view rest(at + std::strlen("lane[0]:"));
    rest = rest.substr(0, rest.find('\n'));
    const size_t colon = rest.find(':');
    const size_t slash = rest.find('/');
    if (colon != std::string_view::npos && slash != std::string_view::npos && colon < slash) {
      lane = rest.substr(colon + 1, slash - colon - 1);
    }
  }
  std::free(text);
  return lane;
}

}  // namespace ucx_internal

std::vector<std::pair<std::string, std::string>> ucx_start_environment() {
  return {{"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_ERROR_SIGNALS", ""}, {"UCX_LOG_FILE", "stderr"}};
}

}  // namespace gradwire::transport
