#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "tools/commands.h"
#include "tools/status.h"

namespace gradwire::tools {
namespace {

struct StatusOptions {
  std::vector<std::string> runtime_dirs;
  StatusFilter filter;
  bool json = false;
};

int run_status(const StatusOptions& options) {
  std::vector<DaemonReport> reports = collect(options.runtime_dirs);
  const bool found = apply_filter(options.filter, &reports);
  const uint64_t now = monotonic_ns();
  const std::string text =
      options.json
          ? to_json(reports, now).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
          : to_table(reports, now);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!found) {
    std::fprintf(stderr, "gradwire status: no daemon here knows%s%s%s%s\n",
                 options.filter.job.empty() ? "" : " job ", options.filter.job.c_str(),
                 options.filter.bucket.empty() ? "" : " a bucket like ", options.filter.bucket.c_str());
  }
  return exit_code(reports, found);
}

}  // namespace

void add_status_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = app.add_subcommand("status", "Show what this machine's daemons do");
  command->footer(
      "Reads the counters page that a daemon writes, so it works also while the daemon does not answer.\n"
      "Exit codes: 0 healthy; 1 degraded (a job was aborted, a node was lost, or the engine gave no sign of\n"
      "life for 3 s); 2 wrong usage; 3 not running (no page, or nobody holds it); 4 no such job or bucket.");
  options->runtime_dirs = {config::NodeOptions{}.runtime_dir};
  command
      ->add_option("--runtime-dir", options->runtime_dirs,
                   "The daemon's node.runtime_dir; may be given several times")
      ->envname("GRADWIRE_RUNTIME_DIR")
      ->take_all()
      ->expected(1)
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON; names carry their units");
  command->add_option("--job", options->filter.job, "Only the job of this name");
  command->add_option("--bucket", options->filter.bucket,
                      "Only buckets whose name fits this pattern (* any characters, ? any one)");
  command->callback([options, exit_code] { *exit_code = run_status(*options); });
}

}  // namespace gradwire::tools
