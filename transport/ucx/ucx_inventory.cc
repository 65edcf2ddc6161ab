#include "transport/ucx/ucx_inventory.h"

#include <fnmatch.h>
#include <ucs/config/parser.h>
#include <uct/api/uct.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "config/base/similar.h"
#include "transport/ucx/ucx_context.h"

namespace gradwire::transport::ucx_internal {
namespace {

using Words = std::set<std::string>;

// Transports that UCX has, whether or not this build and this host offer them.
constexpr std::array<std::string_view, 24> kTransports = {
    "self",     "tcp",      "sysv",      "posix",   "cma",      "knem",     "xpmem",     "rc_verbs",
    "rc_mlx5",  "dc_mlx5",  "ud_verbs",  "ud_mlx5", "gga_mlx5", "srd",      "cuda_copy", "cuda_ipc",
    "gdr_copy", "rocm_ipc", "rocm_copy", "ze_copy", "ze_ipc",   "ugni_udt", "ugni_rdma", "ugni_smsg"};
// Groups of transports that carry nothing to another host.
constexpr std::array<std::string_view, 8> kLocal = {"self", "sm",    "shm", "mm",
                                                    "sysv", "posix", "cma", "xpmem"};

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

std::string join(const Words& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : ", ") + word;
  }
  return out.empty() ? "none" : out;
}

// "; did you mean 'x'?" or nothing.
std::string hint(std::string_view word, const Words& known) {
  const auto near = nearest(word, known);
  return near ? "; did you mean '" + std::string(*near) + "'?" : "";
}

// What UCX prints about its configuration: its documentation lists the aliases of transports, its variables
// are the settings.
void read_configuration(Inventory* inventory) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) {
    return;
  }
  constexpr int kEverything = UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_DOC | UCS_CONFIG_PRINT_HIDDEN;
  ucs_config_parser_print_all_opts(stream, "UCX_", static_cast<ucs_config_print_flags_t>(kEverything),
                                   &ucs_config_global_list);
  std::fclose(stream);
  const std::unique_ptr<char, void (*)(void*)> owner(text, &std::free);
  std::string_view rest(text, size);
  constexpr std::string_view kItem = "#  - ";
  Words items;  // of the list in the documentation that was read last
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.starts_with(kItem)) {
      std::string names(line.substr(kItem.size(), line.find(':') - kItem.size()));
      names.erase(std::remove(names.begin(), names.end(), ' '), names.end());
      std::replace(names.begin(), names.end(), '/', ',');
      for (const std::string& name : split(names)) {
        items.insert(name);
      }
    } else if (line.starts_with("UCX_")) {
      const std::string name(line.substr(4, line.find_first_of("= ") - 4));
      inventory->settings.insert(name);
      if (name == "TLS") {
        inventory->aliases = items;
      }
      items.clear();
    }
  }
}

Status read_memory_domain(uct_component_h component, const char* name, Inventory* inventory) {
  uct_md_config_t* config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) {
    return {};
  }
  uct_md_h domain = nullptr;
  const ucs_status_t opened = uct_md_open(component, name, config, &domain);
  uct_config_release(config);
  if (opened != UCS_OK) {
    return {};  // UCX goes on without it, too
  }
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  Status status =
      status_of(uct_md_query_tl_resources(domain, &resources, &count), "cannot ask UCX for its transports");
  for (unsigned i = 0; status.ok() && i < count; ++i) {
    inventory->transports.insert(resources[i].tl_name);
    if (resources[i].dev_type == UCT_DEVICE_TYPE_NET) {
      inventory->net_devices.emplace(resources[i].dev_name, resources[i].tl_name);
    }
  }
  if (status.ok()) {
    uct_release_tl_resource_list(resources);
  }
  uct_md_close(domain);
  return status;
}

bool is_alias_of(std::string_view alias, std::string_view transport) {
  if (alias == "all") {
    return true;
  }
  if (alias == "ib") {
    return transport.starts_with("rc_") || transport.starts_with("ud_") || transport.starts_with("dc_");
  }
  if (alias == "rc_v" || alias == "ud_v") {
    return transport == std::string(alias) + "erbs";
  }
  if (alias.ends_with("_x")) {
    return transport == std::string(alias.substr(0, alias.size() - 1)) + "mlx5";
  }
  if (alias == "sm" || alias == "shm" || alias == "mm") {
    return std::ranges::find(kLocal, transport) != kLocal.end() && transport != "self";
  }
  return transport.starts_with(std::string(alias) + "_");
}

Status check_transports(const std::string& tls, const Inventory& inventory) {
  const bool negated = tls.starts_with("^");
  const std::vector<std::string> names = split(std::string_view(tls).substr(negated ? 1 : 0));
  if (names.empty()) {
    return {Code::kInvalidArgument, "transport.tls is empty; write for example tcp,self"};
  }
  Words known(kTransports.begin(), kTransports.end());
  known.insert(inventory.transports.begin(), inventory.transports.end());
  known.insert(inventory.aliases.begin(), inventory.aliases.end());
  bool reaches = negated;
  bool wants_network = false;
  for (std::string name : names) {
    name = name.substr(name.starts_with("\\") ? 1 : 0);
    name = name.substr(0, name.find(':'));  // "ud:aux"
    if (!known.contains(name)) {
      return {Code::kInvalidArgument, "transport.tls: UCX has no transport '" + name +
                                          "'; available on this host: " + join(inventory.transports) +
                                          hint(name, known)};
    }
    const bool local = std::ranges::find(kLocal, name) != kLocal.end();
    wants_network = wants_network || !local;
    reaches = reaches || std::ranges::any_of(inventory.transports, [&](const std::string& transport) {
                return !local && (transport == name || is_alias_of(name, transport));
              });
  }
  if (wants_network && !reaches) {
    return {Code::kUnsupported, "transport.tls: none of the network transports in '" + tls +
                                    "' is available on this host, which has " + join(inventory.transports) +
                                    "; add one of those"};
  }
  return {};
}

Status check_devices(const std::string& devices, const Inventory& inventory) {
  Words available;
  for (const auto& [device, transport] : inventory.net_devices) {
    available.insert(device);
  }
  for (const std::string& name : split(devices)) {
    const bool known = name == "all" || std::ranges::any_of(available, [&](const std::string& device) {
                         return ::fnmatch(name.c_str(), device.c_str(), 0) == 0;
                       });
    if (!known) {
      return {Code::kInvalidArgument, "transport.devices: UCX can use no network device '" + name +
                                          "' on this host; available: " + join(available) +
                                          hint(name, available)};
    }
  }
  return {};
}

// UCX takes a transport's setting also under the name of the group that it belongs to: RC_TX_QUEUE_LEN for
// RC_VERBS_TX_QUEUE_LEN.
bool is_group_setting(const std::string& name, const Words& settings) {
  for (const std::string_view group : {"RC_", "UD_", "DC_", "IB_", "MM_", "SM_", "CUDA_", "ROCM_"}) {
    if (!name.starts_with(group)) {
      continue;
    }
    const std::string tail = "_" + name.substr(group.size());
    return std::ranges::any_of(settings, [&](const std::string& known) { return known.ends_with(tail); });
  }
  return false;
}

Status check_settings(const UcxOptions& options, const Inventory& inventory) {
  for (const auto& [name, value] : options.overrides) {
    if (!inventory.settings.contains(name) && !is_group_setting(name, inventory.settings)) {
      return {Code::kInvalidArgument,
              "transport.ucx: this UCX has no setting '" + name + "' (ucx_info -c -f lists " +
                  std::to_string(inventory.settings.size()) + ")" + hint(name, inventory.settings)};
    }
  }
  return {};
}

}  // namespace

bool set_by_user(const std::string& variable) {
  return std::getenv(("UCX_" + variable).c_str()) != nullptr;
}

Result<Inventory> read_inventory() {
  Inventory inventory;
  uct_component_h* components = nullptr;
  unsigned count = 0;
  GRADWIRE_RETURN_IF_ERROR(
      status_of(uct_query_components(&components, &count), "cannot ask UCX for its transports"));
  const std::unique_ptr<uct_component_h, void (*)(uct_component_h*)> owner(components,
                                                                           &uct_release_component_list);
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (uct_component_query(components[i], &attributes) != UCS_OK) {
      continue;
    }
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (domains.empty() || uct_component_query(components[i], &attributes) != UCS_OK) {
      continue;
    }
    for (const uct_md_resource_desc_t& domain : domains) {
      GRADWIRE_RETURN_IF_ERROR(read_memory_domain(components[i], domain.md_name, &inventory));
    }
  }
  read_configuration(&inventory);
  return inventory;
}

Status check_options(const UcxOptions& options, const Inventory& inventory) {
  if (!set_by_user("TLS")) {
    GRADWIRE_RETURN_IF_ERROR(check_transports(options.tls, inventory));
  }
  if (!set_by_user("NET_DEVICES") && !options.net_devices.empty()) {
    GRADWIRE_RETURN_IF_ERROR(check_devices(options.net_devices, inventory));
  }
  return options.overrides.empty() ? ok_status() : check_settings(options, inventory);
}

}  // namespace gradwire::transport::ucx_internal
