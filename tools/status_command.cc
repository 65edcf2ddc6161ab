#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "tools/commands.h"
#include "tools/discover.h"
#include "tools/status.h"

namespace gradwire::tools {
namespace {

struct StatusOptions {
  std::vector<std::string> runtime_dirs;
  StatusFilter filter;
  bool json = false;
  bool all = false;
  double watch_seconds = 0;  // 0: once
  uint64_t count = 0;        // looks; 0: until Ctrl-C
};

std::string render(const StatusOptions& options, const std::vector<DaemonReport>& reports) {
  const uint64_t now = monotonic_ns();
  if (options.json) {
    const int indent = options.watch_seconds > 0 ? -1 : 2;  // one document a line, where there are several
    return to_json(reports, now).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  const bool whole = options.all || !options.filter.bucket.empty();
  return to_table(reports, now, whole ? layout::kCounterBuckets : kShownBuckets);
}

// One look. `before` is written in front of it.
int look(const StatusOptions& options, const std::string& before) {
  std::vector<DaemonReport> reports =
      collect(options.runtime_dirs.empty() ? default_runtime_dirs(config::NodeOptions{}.runtime_dir)
                                           : options.runtime_dirs);
  const Status found = apply_filter(options.filter, &reports);
  if (found.ok() || options.json) {
    const std::string text = before + render(options, reports);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  if (!found.ok()) {
    std::fprintf(stderr, "gradwire status: %s\n", found.message().c_str());
  }
  return exit_code(reports, found.ok());
}

// Waits; true if Ctrl-C or SIGTERM came meanwhile.
bool interrupted_within(double seconds, const sigset_t& signals) {
  const uint64_t end = monotonic_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (;;) {
    const uint64_t now = monotonic_ns();
    const uint64_t left = end > now ? end - now : 0;
    const timespec patience{static_cast<time_t>(left / 1'000'000'000),
                            static_cast<long>(left % 1'000'000'000)};
    if (::sigtimedwait(&signals, nullptr, &patience) > 0) {
      return true;
    }
    if (errno == EAGAIN) {
      return false;
    }
  }
}

int watch(const StatusOptions& options) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && !options.json;
  int code = 0;
  bool interrupted = false;
  for (uint64_t i = 0; !interrupted && (options.count == 0 || i < options.count); ++i) {
    if (i > 0 && interrupted_within(options.watch_seconds, signals)) {
      interrupted = true;
      break;
    }
    const std::string again = options.json || i == 0 ? "" : "\n";
    code = look(options, terminal ? "\x1b[H\x1b[2J" : again);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return interrupted ? 0 : code;
}

}  // namespace

void add_status_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = app.add_subcommand("status", "Show what this machine's daemons do");
  command->footer(
      "Reads the counters page that a daemon writes, so it works also while the daemon does not answer.\n"
      "Without --runtime-dir it looks at the service and at the daemons of your own `gradwire run`s.\n"
      "LATE is how long a rank submits behind the first rank of its node: on average and at worst.\n"
      "Exit codes: 0 healthy; 1 degraded (a job was aborted within 30 s, an operation stands still, a node\n"
      "was lost, the daemon has stood still for 3 s, or the page cannot be read); 2 wrong usage; 3 not\n"
      "running; 4 no such job or bucket. --watch gives that of its last look, and 0 on Ctrl-C.");
  command
      ->add_option("--runtime-dir", options->runtime_dirs,
                   "The daemon's node.runtime_dir; may be given several times")
      ->envname("GRADWIRE_RUNTIME_DIR")
      ->take_all()
      ->expected(1);
  command->add_flag("--json", options->json, "Print JSON; names carry their units");
  command->add_option("--job", options->filter.job, "Only the job of this name or number");
  command->add_option("--bucket", options->filter.bucket,
                      "Only buckets whose name fits this pattern (* any characters, ? any one)");
  command->add_flag("--all", options->all, "Show all buckets, not only the 20 largest");
  CLI::Option* watching =
      command->add_option("--watch", options->watch_seconds, "Look again every so many seconds")
          ->check(CLI::Range(0.1, 86400.0))
          ->check([](const std::string& text) {  // which the range lets through
            return std::isnan(std::strtod(text.c_str(), nullptr)) ? "'" + text + "' is not a number" : "";
          });
  command->add_option("--count", options->count, "End after so many looks")
      ->needs(watching)
      ->check(CLI::Range(1u, 1u << 30));
  command->callback([options, exit_code] {
    *exit_code = options->watch_seconds > 0 ? watch(*options) : look(*options, "");
  });
}

}  // namespace gradwire::tools
