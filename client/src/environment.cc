#include "client/src/environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "client/src/error.h"
#include "client/src/text.h"

namespace gradwire::client {
namespace {

constexpr int64_t kLongestMs = int64_t{1} << 40;  // decades: what is longer counts as this
constexpr uint32_t kJoinFlags = GW_JOIN_FRESH | GW_JOIN_LEAVE_AT_EXIT;

struct Launcher {
  const char* name;
  const char* rank;
  const char* world;
  const char* local_world;  // ranks on this node, if the launcher says it
  const char* nodes;        // nodes of the job, if the launcher says it
  std::array<const char*, 2> job;
  std::array<const char*, 2> run_id;
  std::array<const char*, 2> node_list;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_WORLD_SIZE",
     nullptr,
     {"TORCHELASTIC_RUN_ID", nullptr},
     {"TORCHELASTIC_RUN_ID", nullptr},
     {nullptr, nullptr}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {nullptr, nullptr},
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     {nullptr, nullptr}},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     nullptr,
     "SLURM_NNODES",
     {"SLURM_JOB_ID", nullptr},
     {"SLURM_STEP_ID", nullptr},
     {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}},
};

// An empty variable counts as one that is not set.
const char* find(const Lookup& lookup, const char* name) {
  const char* value = name == nullptr ? nullptr : lookup(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const char* find_first(const Lookup& lookup, const std::array<const char*, 2>& names) {
  const char* value = find(lookup, names[0]);
  return value != nullptr ? value : find(lookup, names[1]);
}

gw_status read_number(const char* name, const char* text, int32_t low, int32_t high, int32_t* value) {
  const char* end = text + std::strlen(text);
  int32_t number = 0;
  const auto [stopped, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stopped != end || number < low || number > high) {
    return fail(GW_ERR_INVALID, say(name, " is \"", excerpt(text, 64), "\"; it must be a whole number from ",
                                    low, " to ", high));
  }
  *value = number;
  return GW_OK;
}

gw_status read_variable(const Lookup& lookup, const char* name, int32_t low, int32_t high, int32_t* value) {
  const char* text = find(lookup, name);
  return text == nullptr ? GW_OK : read_number(name, text, low, high, value);
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host.substr(0, 4) == "127." || host == "::1" || host == "[::1]";
}

// "rack[01-03,7]-a,login" -> "rack01-a"
std::string first_of_node_list(std::string_view list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) {
    return std::string(list.substr(0, comma));
  }
  const size_t close = list.find(']', bracket);
  if (close == std::string_view::npos) {
    return std::string(list.substr(0, bracket));
  }
  const std::string_view inside = list.substr(bracket + 1, close - bracket - 1);
  const std::string_view rest = list.substr(close + 1);
  return say(list.substr(0, bracket), inside.substr(0, inside.find_first_of("-,")),
             rest.substr(0, rest.find(',')));
}

gw_status check_identity_text(const char* what, const std::string& text) {
  if (text.empty() || text.size() > kMaxIdentityBytes) {
    return fail(GW_ERR_INVALID,
                say("the ", what, " has ", text.size(), " bytes; 1 to ", kMaxIdentityBytes, " are allowed"));
  }
  return check_text(say("the ", what), text);
}

class Resolver {
 public:
  Resolver(const gw_join_options& options, const Lookup& lookup, Identity* identity)
      : options_(options), lookup_(lookup), id_(*identity) {}

  gw_status run() {
    if (const gw_status status = find_ranks(); status != GW_OK) {
      return status;
    }
    find_names();
    if (const gw_status status = find_rendezvous(); status != GW_OK) {
      return status;
    }
    id_.timeout_ms = std::clamp<int64_t>(options_.timeout_ms, 0, kLongestMs);
    if (const gw_status status = find_wait(); status != GW_OK) {
      return status;
    }
    id_.fresh = (options_.flags & GW_JOIN_FRESH) != 0;
    id_.leave_at_exit = (options_.flags & GW_JOIN_LEAVE_AT_EXIT) != 0;
    id_.socket = text(options_.socket, find(lookup_, "GRADWIRE_SOCKET"), kDefaultSocket);
    if (const gw_status status = check_identity_text("job's name", id_.job); status != GW_OK) {
      return status;
    }
    return check_identity_text("run id", id_.run_id);
  }

 private:
  static std::string text(const char* given, const char* variable, const char* otherwise) {
    return given != nullptr ? given : variable != nullptr ? variable : otherwise;
  }

  gw_status find_wait() {
    int32_t variable = 0;
    if (options_.wait_ms == 0) {
      if (const gw_status status = read_variable(lookup_, "GRADWIRE_WAIT_MS", 0, INT32_MAX, &variable);
          status != GW_OK) {
        return status;
      }
    }
    id_.wait_ms = options_.wait_ms == 0 ? variable : std::max<int64_t>(options_.wait_ms, 0);
    return GW_OK;
  }

  gw_status find_ranks() {
    const bool world_given = options_.world > 0;
    id_.world = world_given ? options_.world : -1;
    id_.rank = options_.rank > 0 || (options_.rank == 0 && world_given) ? options_.rank : -1;
    for (const Launcher& launcher : kLaunchers) {
      if (find(lookup_, launcher.rank) != nullptr && find(lookup_, launcher.world) != nullptr) {
        launcher_ = &launcher;
        break;
      }
    }
    if (const gw_status status =
            fill(&id_.rank, "GRADWIRE_RANK", launcher_ ? launcher_->rank : nullptr, 0, kMaxWorld - 1);
        status != GW_OK) {
      return status;
    }
    if (const gw_status status =
            fill(&id_.world, "GRADWIRE_WORLD", launcher_ ? launcher_->world : nullptr, 1, kMaxWorld);
        status != GW_OK) {
      return status;
    }
    if (id_.rank < 0 || id_.world < 0) {
      return fail(
          GW_ERR_INVALID,
          say("this process does not know its ", id_.rank < 0 ? "rank" : "world size",
              ": pass it to gw_join, set GRADWIRE_RANK and GRADWIRE_WORLD, or start with gradwire run, "
              "torchrun, mpirun or srun"));
    }
    if (id_.world > kMaxWorld || id_.rank >= id_.world) {
      return fail(GW_ERR_INVALID, say("rank ", id_.rank, " of world ", id_.world,
                                      ": ranks count from 0 to world - 1, and world is at most ", kMaxWorld));
    }
    return GW_OK;
  }

  gw_status fill(int32_t* value, const char* ours, const char* launchers, int32_t low, int32_t high) {
    if (*value >= 0) {
      return GW_OK;
    }
    if (const gw_status status = read_variable(lookup_, ours, low, high, value);
        status != GW_OK || *value >= 0 || launchers == nullptr) {
      return status;
    }
    return read_variable(lookup_, launchers, low, high, value);
  }

  void find_names() {
    const char* job = launcher_ ? find_first(lookup_, launcher_->job) : nullptr;
    if (job != nullptr && std::strcmp(job, "none") == 0) {
      job = nullptr;  // torchrun's own default
    }
    const char* run = launcher_ ? find_first(lookup_, launcher_->run_id) : nullptr;
    const char* our_job = find(lookup_, "GRADWIRE_JOB");
    const char* our_run = find(lookup_, "GRADWIRE_RUN_ID");
    id_.job = text(options_.job, our_job != nullptr ? our_job : job, "default");
    id_.run_id = text(options_.run_id, our_run != nullptr ? our_run : run, "0");
  }

  // Yes, no, or the launcher does not say.
  std::optional<bool> all_on_this_node() const {
    int32_t number = 0;
    if (launcher_ == nullptr) {
      return std::nullopt;
    }
    if (const char* local = find(lookup_, launcher_->local_world);
        local != nullptr && read_number(launcher_->local_world, local, 1, kMaxWorld, &number) == GW_OK) {
      return number == id_.world;
    }
    if (const char* nodes = find(lookup_, launcher_->nodes);
        nodes != nullptr && read_number(launcher_->nodes, nodes, 1, kMaxWorld, &number) == GW_OK) {
      return number == 1;
    }
    return std::nullopt;
  }

  gw_status find_rendezvous() {
    const char* explicit_place =
        options_.rendezvous != nullptr ? options_.rendezvous : find(lookup_, "GRADWIRE_RENDEZVOUS");
    if (explicit_place != nullptr) {
      id_.rendezvous = explicit_place;
    } else if (const auto here = all_on_this_node(); !here.value_or(false)) {
      const char* master = find(lookup_, "MASTER_ADDR");
      const char* list = launcher_ ? find_first(lookup_, launcher_->node_list) : nullptr;
      if (master != nullptr) {
        id_.rendezvous = is_loopback(master) ? "" : master;
      } else if (list != nullptr) {
        id_.rendezvous = first_of_node_list(list);
      } else if (here.has_value()) {
        return fail(GW_ERR_INVALID, say(launcher_->name,
                                        " has ranks of this job on several nodes but does not say where the "
                                        "coordinating daemon is: set GRADWIRE_RENDEZVOUS to rank 0's host"));
      }
    }
    if (id_.rendezvous.size() > 255) {
      return fail(GW_ERR_INVALID,
                  say("the rendezvous has ", id_.rendezvous.size(), " bytes; a host[:port] has at most 255"));
    }
    return GW_OK;
  }

  const gw_join_options& options_;
  const Lookup& lookup_;
  Identity& id_;
  const Launcher* launcher_ = nullptr;
};

}  // namespace

gw_status resolve_identity(const gw_join_options& options, const Lookup& lookup, Identity* identity) {
  return Resolver(options, lookup, identity).run();
}

gw_status read_options(const gw_join_options* given, gw_join_options* options) {
  *options = gw_join_options{};
  options->rank = -1;
  options->world = -1;
  if (given == nullptr) {
    options->struct_size = sizeof(gw_join_options);
    return GW_OK;
  }
  const size_t size = given->struct_size;
  constexpr size_t kLargest = 4096;
  if (size < sizeof(size_t) || size > kLargest) {
    return fail(GW_ERR_INVALID,
                say("gw_join_options.struct_size is ", size, "; set it to sizeof(gw_join_options) (",
                    sizeof(gw_join_options), " here)"));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(gw_join_options); i < size; ++i) {
    if (bytes[i] != 0) {
      return fail(GW_ERR_UNSUPPORTED,
                  say("gw_join_options asks for something that libgradwire ", GRADWIRE_VERSION,
                      " does not know: the program was built with a newer gradwire.h"));
    }
  }
  std::memcpy(options, given, std::min(size, sizeof(gw_join_options)));
  if ((options->flags & ~kJoinFlags) != 0) {
    return fail(GW_ERR_UNSUPPORTED,
                say("gw_join_options.flags is ", options->flags, " and has bits that libgradwire ",
                    GRADWIRE_VERSION, " does not know: install a newer one or clear them"));
  }
  return GW_OK;
}

}  // namespace gradwire::client
