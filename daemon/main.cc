// gradwired: the daemon of one node.
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
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
#include "daemon/control/daemon.h"
#include "transport/ucx/ucx_transport.h"

namespace {

using gradwire::Result;
using gradwire::config::LoadedConfig;

// "<4>": what journald reads a line's priority from.
class JournalPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const char priority = message.level >= spdlog::level::critical ? '2'
                          : message.level == spdlog::level::err    ? '3'
                          : message.level == spdlog::level::warn   ? '4'
                          : message.level == spdlog::level::info   ? '6'
                                                                   : '7';
    const char text[] = {'<', priority, '>'};
    out.append(text, text + sizeof(text));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalPriority>();
  }
};

void set_up_log(const std::string& level) {
  auto logger =
      std::make_shared<spdlog::logger>("gradwired", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JournalPriority>('*');
  formatter->set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%*%v"
                                                                  : "%Y-%m-%dT%H:%M:%S.%e%z level=%l %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

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

int run(const Arguments& arguments) {
  std::string file = arguments.check_file.empty() ? arguments.file : arguments.check_file;
  const Result<LoadedConfig> loaded =
      gradwire::config::load_config(file.empty() ? std::nullopt : std::optional(file), arguments.overrides);
  if (!loaded.ok()) {
    std::cerr << "gradwired: " << loaded.status().message() << '\n';
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
  set_up_log(loaded->config.log.level);
  std::signal(SIGPIPE, SIG_IGN);
  gradwire::control::Daemon daemon(loaded->config);
  if (const gradwire::Status status = daemon.start(); !status.ok()) {
    spdlog::error("event=not_started cause=\"{}\"", status.message());
    const bool configured_wrongly = status.code() == gradwire::Code::kInvalidArgument ||
                                    status.code() == gradwire::Code::kPermissionDenied ||
                                    status.code() == gradwire::Code::kNotFound;
    return configured_wrongly ? EX_CONFIG : 1;
  }
  daemon.run();
  return 0;
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
      app.add_option("--check-config", arguments.check_file, "check the configuration and exit")
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
