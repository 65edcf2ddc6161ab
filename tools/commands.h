// The subcommands of `gradwire`. Each adds its options to `app` and sets a callback that stores the exit
// code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace gradwire::tools {

inline constexpr int kExitUsage = 2;

void add_status_command(CLI::App& app, int* exit_code);
// `command`: what stands behind "--" on the command line.
void add_run_command(CLI::App& app, const std::vector<std::string>& command, int* exit_code);
void add_bench_command(CLI::App& app, int* exit_code);
void add_version_command(CLI::App& app, int* exit_code);

}  // namespace gradwire::tools
