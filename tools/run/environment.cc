#include "tools/run/environment.h"

#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

namespace gradwire::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualPath = "/usr/local/bin:/usr/bin:/bin";  // execvp's, where PATH is not set

void put_first(Environment* environment, const std::string& variable, const std::string& folder) {
  if (folder.empty()) {
    return;
  }
  std::string& list = (*environment)[variable];
  if (list.empty() && variable == "PATH") {
    list = kUsualPath;
  }
  list = list.empty() ? folder : folder + ":" + list;
}

// A folder with links (name, target); its path, or empty where the target is.
Result<std::string> make_folder(const std::string& path, const std::string& target,
                                std::initializer_list<const char*> names) {
  if (target.empty()) {
    return std::string();
  }
  std::error_code error;
  fs::create_directory(path, error);
  for (const char* name : names) {
    if (!error) {
      fs::create_symlink(target, path + "/" + name, error);
    }
  }
  if (error) {
    return Status(Code::kResourceExhausted, "cannot make links in " + path + ": " + error.message());
  }
  return path;
}

}  // namespace

Result<SearchFolders> make_search_folders(const std::string& folder, const std::string& executable,
                                          const std::string& library, const std::string& python_package) {
  const Result<std::string> python = make_folder(folder + "/python", python_package, {"gradwire"});
  GRADWIRE_RETURN_IF_ERROR(python.status());
  const Result<std::string> libraries =
      make_folder(folder + "/lib", library, {"libgradwire.so", "libgradwire.so.0"});
  GRADWIRE_RETURN_IF_ERROR(libraries.status());
  const Result<std::string> programs = make_folder(folder + "/bin", executable, {"gradwire"});
  GRADWIRE_RETURN_IF_ERROR(programs.status());
  return SearchFolders{*python, *libraries, *programs};
}

Environment rank_environment(Environment base, const RankPlace& place) {
  const auto number = [](uint32_t value) { return std::to_string(value); };
  base["GRADWIRE_SOCKET"] = place.socket;
  base["GRADWIRE_RENDEZVOUS"] = place.rendezvous;
  base["GRADWIRE_JOB"] = place.job;
  base["GRADWIRE_RUN_ID"] = place.run_id;
  base["GRADWIRE_RANK"] = base["RANK"] = number(place.rank);
  base["GRADWIRE_WORLD"] = base["WORLD_SIZE"] = number(place.world);
  base["LOCAL_RANK"] = number(place.local_rank);
  base["LOCAL_WORLD_SIZE"] = number(place.local_ranks);
  base["GROUP_RANK"] = number(place.node);
  base["MASTER_ADDR"] = "127.0.0.1";
  base["MASTER_PORT"] = std::to_string(place.master_port);
  base.emplace("OMP_NUM_THREADS", "1");
  if (!place.library.empty()) {
    base.emplace("GRADWIRE_LIBRARY", place.library);
  }
  put_first(&base, "PYTHONPATH", place.folders.python);
  put_first(&base, "LD_LIBRARY_PATH", place.folders.library);
  put_first(&base, "PATH", place.folders.programs);
  return base;
}

}  // namespace gradwire::tools
