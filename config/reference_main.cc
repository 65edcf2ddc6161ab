// Prints the documentation of the options: gradwire-config-reference markdown|man.
#include <cstdio>
#include <string_view>

#include "config/reference.h"

int main(int argc, char** argv) {
  const std::string_view form = argc == 2 ? argv[1] : "";
  if (form != "markdown" && form != "man") {
    std::fputs("usage: gradwire-config-reference markdown|man\n", stderr);
    return 2;
  }
  const std::string text =
      form == "man" ? gradwire::config::reference_man() : gradwire::config::reference_markdown();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}
