// What a rank of `gradwire run` is told by its environment.
#pragma once

#include <cstdint>
#include <string>

#include "config/base/result.h"
#include "tools/run/process.h"

namespace gradwire::tools {

// Folders for the search paths of the ranks. Each holds links to our parts only: the folder in which one of
// them is installed would put everything else in it before what the user's environment has (a virtual
// environment's packages, another Python).
struct SearchFolders {
  std::string python;    // for PYTHONPATH: `gradwire`
  std::string library;   // for LD_LIBRARY_PATH: `libgradwire.so` and `.so.0`
  std::string programs;  // for PATH: `gradwire`
};
// Makes them in `folder`; empty where the part was not found.
Result<SearchFolders> make_search_folders(const std::string& folder, const std::string& executable,
                                          const std::string& library, const std::string& python_package);

struct RankPlace {
  uint32_t rank = 0, world = 1, local_rank = 0, local_ranks = 1, node = 0;
  std::string socket, rendezvous, job, run_id;
  uint16_t master_port = 0;
  std::string library;  // path; empty: not found, nothing is set
  SearchFolders folders;
};
Environment rank_environment(Environment base, const RankPlace& place);

}  // namespace gradwire::tools
