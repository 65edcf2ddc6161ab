// The client tests' fake daemon as a process: prints its socket's path, serves until its input ends.
#include <cstdio>

#include "tests/client/fake_daemon.h"

int main() {
  const gradwire::client::FakeDaemon daemon;
  std::printf("%s\n", daemon.socket_path().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
