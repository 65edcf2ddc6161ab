#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "tools/commands.h"
#include "tools/format.h"
#include "tools/run/guard.h"
#include "tools/run/launcher.h"

namespace gradwire::tools {
namespace {

constexpr uint32_t kMostNodes = 64;
constexpr uint32_t kMostLocalRanks = 256;

// What every daemon has a value of its own for.
constexpr std::string_view kOwnOptions[] = {"node.name",  "node.runtime_dir", "node.socket",   "peers.listen",
                                            "peers.port", "peers.advertise",  "peers.key_file"};

std::string check_setting(const std::string& setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    return "'" + printable(setting) + "' is not KEY=VALUE, for example clocks.peer_timeout=5s";
  }
  const std::string name = setting.substr(0, equals);
  if (std::ranges::find(kOwnOptions, name) != std::end(kOwnOptions)) {
    return name +
           " is set by gradwire run itself, for every daemon another; leave it out, or start gradwired by "
           "hand";
  }
  return "";
}

// Before anything starts. A daemon that was named may be of another version: it judges itself.
void check_settings(const RunOptions& options) {
  if (!options.daemon.empty()) {
    return;
  }
  const auto loaded = config::load_config(std::nullopt, options.settings);
  if (!loaded.ok()) {
    throw CLI::ValidationError("--set", loaded.status().message());
  }
}

}  // namespace

void add_run_command(CLI::App& app, const std::vector<std::string>& command_line, int* exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run", "Start daemons on this machine and a command once per rank, without any set-up");
  command->footer(
      "gradwire run -n NODES [-l LOCAL_RANKS] [OPTIONS] -- COMMAND [ARGUMENTS...]\n"
      "Daemons use 127.0.0.1 and a folder of their own under $TMPDIR, with a key made for this run. Every\n"
      "rank finds its place in GRADWIRE_*, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,\n"
      "MASTER_ADDR and MASTER_PORT, and this Gradwire first in PATH, LD_LIBRARY_PATH and PYTHONPATH; its\n"
      "output is passed on with [RANK] in front. Meanwhile `gradwire status` shows the daemons; at the end\n"
      "their status is printed.\n"
      "Exit codes: that of the worst rank (128 + number where a signal ended it); 1 a daemon died; 2 wrong\n"
      "usage; 125 the run could not be set up; 128 + number when interrupted.");
  command->add_option("-n,--nodes", options->nodes, "Daemons to start")
      ->required()
      ->check(CLI::Range(1u, kMostNodes));
  command->add_option("-l,--local-ranks", options->local_ranks, "Ranks on each of them")
      ->check(CLI::Range(1u, kMostLocalRanks))
      ->capture_default_str();
  command->add_option_function<std::string>(
      "--codec",
      [options](const std::string& name) {
        options->settings.push_back("compression.codec=" + name);
        options->settings.emplace_back("plan.bypass=never");
      },
      "Codec for gradients, as compression.codec in docs/configuration.md, also where exact ones are faster");
  command
      ->add_option_function<std::vector<std::string>>(
          "--set",
          [options](const std::vector<std::string>& settings) {
            options->settings.insert(options->settings.end(), settings.begin(), settings.end());
          },
          "KEY=VALUE for every daemon's configuration, but names, places and ports; may be given several "
          "times")
      ->expected(1)
      ->take_all()
      ->check(check_setting);
  command->add_option("--daemon", options->daemon,
                      "The gradwired to start; default: the one beside this command");
  command
      ->add_option("--grace", options->grace_seconds,
                   "Seconds that the other ranks have to end after one failed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_flag("--keep", options->keep, "Leave the folder with configurations and logs");
  command->callback([options, command_line, exit_code] {
    if (command_line.empty()) {
      throw CLI::ValidationError("COMMAND",
                                 "no command; write it behind '--', for example: gradwire run "
                                 "-n 2 -- python3 train.py");
    }
    options->command = command_line;
    check_settings(*options);
    *exit_code = run_guarded(
        options->keep, [options](const std::string& folder) { return Launcher(*options, folder).run(); });
  });
}

}  // namespace gradwire::tools
