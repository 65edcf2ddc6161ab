#include <gradwire/gradwire.h>

#include <cstdio>

#include "client/layout/counters_layout.h"
#include "client/layout/session_layout.h"
#include "tools/commands.h"

namespace gradwire::tools {

void add_version_command(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("version", "Print the versions of command, library and layouts");
  command->callback([exit_code] {
    std::printf("gradwire %s (library %s, session layout %u, counters layout %u)\n", GRADWIRE_VERSION,
                gw_version(), layout::kLayoutVersion, layout::kCountersVersion);
    *exit_code = 0;
  });
}

}  // namespace gradwire::tools
