// The `gradwire` command.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tools/commands.h"

namespace gradwire::tools {
namespace {

int dispatch(int argc, char** argv) {
  // What stands behind "--" belongs to the command that `run` starts, whatever it looks like.
  std::vector<std::string> own;
  std::vector<std::string> behind;
  bool marked = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (marked) {
      behind.push_back(argument);
    } else if (argument == "--") {
      marked = true;
    } else {
      own.push_back(argument);
    }
  }

  int exit_code = 0;
  CLI::App app("Gradwire: compressed gradient averaging as a node service.", "gradwire");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("gradwire ") + GRADWIRE_VERSION);
  app.footer("'gradwire SUBCOMMAND --help' tells more.");
  add_status_command(app, &exit_code);
  add_run_command(app, behind, &exit_code);
  add_bench_command(app, &exit_code);
  add_version_command(app, &exit_code);
  std::reverse(own.begin(), own.end());  // as CLI11 takes a vector
  try {
    if (marked && (own.empty() || own.back() != "run")) {
      throw CLI::ExtrasError("gradwire", {"--"});
    }
    app.parse(own);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace gradwire::tools

int main(int argc, char** argv) {
  try {
    return gradwire::tools::dispatch(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire: %s\n", error.what());
    return 1;
  }
}
