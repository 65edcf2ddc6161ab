// The `gradwire` command.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "config/base/similar.h"
#include "config/text.h"
#include "tools/commands.h"

namespace gradwire::tools {
namespace {

// CLI11 says of a wrong command only that one is required.
void check_command(const CLI::App& app, const std::string& name) {
  if (name.starts_with("-")) {
    return;
  }
  std::vector<std::string> names;
  std::string list;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) {
      return;
    }
    names.push_back(command->get_name());
    list += (list.empty() ? "" : ", ") + command->get_name();
  }
  if (name.empty()) {
    throw CLI::RequiredError("gradwire: a command is missing; there are: " + list,
                             CLI::ExitCodes::RequiredError);
  }
  const auto near = nearest(name, names);
  throw CLI::ValidationError(
      "gradwire", config::in_quotes(name) + " is no command" +
                      (near ? "; did you mean '" + std::string(*near) + "'?" : "; there are: " + list));
}

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
    check_command(app, own.empty() ? "" : own.back());
    if (marked && own.back() != "run") {
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
