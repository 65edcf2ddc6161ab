// gradwired: the daemon of one node.
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "daemon/control/check_config.h"
#include "daemon/control/daemon.h"
#include "daemon/control/log.h"
#include "daemon/control/log_writer.h"
#include "daemon/control/signal_thread.h"
#include "daemon/control/ucx_log.h"
#include "transport/ucx/ucx_transport.h"

namespace {

using gradwire::Result;
using gradwire::Status;
using gradwire::config::LoadedConfig;
using gradwire::control::Daemon;
using gradwire::control::SignalThread;

constexpr std::chrono::milliseconds kLastLines{500};
constexpr std::chrono::seconds kEnding{5};  // of a daemon that ends by itself

// UCX reads some settings when its library is loaded, before main(): the process starts itself once more with
// them.
void use_ucx_environment(char** argv) {
  constexpr const char* kMark = "GRADWIRED_ENVIRONMENT_SET";
  if (std::getenv(kMark) != nullptr) {
    unsetenv(kMark);
    return;
  }
  bool changed = false;
  for (const auto& [name, value] : gradwire::transport::ucx_start_environment()) {
    if (std::getenv(name.c_str()) == nullptr) {
      setenv(name.c_str(), value.c_str(), 0);
      changed = true;
    }
  }
  if (changed) {
    setenv(kMark, "1", 1);
    execv("/proc/self/exe", argv);
    unsetenv(kMark);  // /proc is not there: go on with what UCX has read
  }
}

struct Arguments {
  std::string file;
  std::vector<std::string> overrides;
  std::string check_file;
  bool check = false;
  bool dump = false;
};

Result<LoadedConfig> load(const std::string& file, const std::vector<std::string>& overrides) {
  return gradwire::config::load_config(file.empty() ? std::nullopt : std::optional(file), overrides);
}

int exit_code(const Status& status) {
  const bool configured_wrongly = status.code() == gradwire::Code::kInvalidArgument ||
                                  status.code() == gradwire::Code::kPermissionDenied ||
                                  status.code() == gradwire::Code::kNotFound;
  return configured_wrongly ? EX_CONFIG : 1;
}

int serve(const Arguments& arguments, const gradwire::config::Config& config) {
  ::prctl(PR_SET_NAME, "gradwired");  // after use_ucx_environment it is called "exe"
  SignalThread::block();
  for (const int ignored : {SIGPIPE, SIGXFSZ}) {
    std::signal(ignored, SIG_IGN);
  }
  gradwire::control::start_log(config.log.level);
  gradwire::control::take_ucx_log();
  std::unique_ptr<Daemon> daemon;
  // Calls come before `daemon` is gone: finish() sees to that.
  SignalThread signals({[&daemon] { daemon->request_reload(); }, [&daemon] { daemon->request_stop(); },
                        [&daemon] { daemon->request_stop_now(); }});
  daemon = std::make_unique<Daemon>(
      config, Daemon::Hooks{[&arguments]() -> Result<gradwire::config::Config> {
                              Result<LoadedConfig> loaded = load(arguments.file, arguments.overrides);
                              GRADWIRE_RETURN_IF_ERROR(loaded.status());
                              return loaded->config;
                            },
                            [&signals](gradwire::control::Nanoseconds limit) { signals.set_limit(limit); }});
  Status status = signals.start();
  if (status.ok()) {
    status = daemon->start();
  }
  int code = 0;
  if (status.ok()) {
    code = daemon->run();
  } else {
    gradwire::control::log_error("not_started", {{"cause", status.message()}});
    code = exit_code(status);
  }
  signals.finish(kEnding);
  daemon.reset();
  if (code == 0) {
    gradwire::control::log_info("stopped", {{"node", config.node.name}});
  }
  gradwire::control::flush_log(kLastLines);
  return code;
}

int run(const Arguments& arguments) {
  const std::string& file = arguments.check_file.empty() ? arguments.file : arguments.check_file;
  const Result<LoadedConfig> loaded = load(file, arguments.overrides);
  Status status = loaded.status();
  if (status.ok() && arguments.check) {
    status = gradwire::control::check_config(loaded->config);
  }
  if (!status.ok()) {
    std::cerr << "gradwired: " << status.message() << '\n';
    return EX_CONFIG;
  }
  if (arguments.check) {
    std::cout << (file.empty() ? "configuration" : file) << ": ok\n";
    return 0;
  }
  if (arguments.dump) {
    std::cout << gradwire::config::dump_config(*loaded);
    return 0;
  }
  return serve(arguments, loaded->config);
}

int start(int argc, char** argv) {
  Arguments arguments;
  bool foreground = true;
  CLI::App app("Averages the gradients of this node's training processes with those of other nodes.",
               "gradwired");
  app.set_version_flag("--version", std::string("gradwired ") + GRADWIRE_VERSION);
  app.add_option("--config", arguments.file, "configuration file (YAML)")->type_name("FILE");
  app.add_option("--set", arguments.overrides, "one option, stronger than the file; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* check =
      app.add_option("--check-config", arguments.check_file,
                     "check the configuration, the key file and what UCX makes of it, and exit")
          ->type_name("[FILE]")
          ->expected(0, 1);
  app.add_flag("--dump-config", arguments.dump, "print the configuration in effect, with sources, and exit");
  app.add_flag("--foreground", foreground, "stay in the foreground (it always does)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : EX_USAGE;
  }
  arguments.check = check->count() > 0;
  return run(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    use_ucx_environment(argv);
    return start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwired: %s\n", error.what());
    return 1;
  }
}
