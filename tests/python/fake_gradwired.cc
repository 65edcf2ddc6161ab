// The client tests' fake daemon as a process: prints its socket's path, then serves. For every line of input
// it prints how many ranks have left in an orderly way; at the end of the input it ends. With an argument it
// is the daemon of a job's third epoch.
#include <cstdio>

#include "tests/client/fake_daemon.h"

int main(int argc, char**) {
  gradwire::client::Behaviour behaviour;
  behaviour.state.assign(10'000, 's');
  if (argc > 1) {
    behaviour.edit_joined = [](nlohmann::json* joined) {
      (*joined)["epoch"] = 3;
      (*joined)["past"] = {{"epoch", 2}, {"unknown_nodes", 1}, {"buckets", {{"b", 16, 17, 0}}}};
    };
  }
  const gradwire::client::FakeDaemon daemon(behaviour);
  std::printf("%s\n", daemon.socket_path().c_str());
  std::fflush(stdout);
  for (int c = 0; (c = std::getchar()) != EOF;) {
    if (c == '\n') {
      std::printf("%llu\n", static_cast<unsigned long long>(daemon.orderly_leaves()));
      std::fflush(stdout);
    }
  }
  return 0;
}
