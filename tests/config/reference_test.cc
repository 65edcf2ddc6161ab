#include "config/reference.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "config/options.h"

namespace gradwire::config {
namespace {

TEST(Reference, DocsConfigurationMdIsWhatTheTableSays) {
  std::ifstream file(GRADWIRE_DOCS_DIR "/configuration.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), reference_markdown())
      << "run: gradwire-config-reference markdown > docs/configuration.md";
}

TEST(Reference, ManPageHasEveryOptionAndNoStrayRequests) {
  const std::string text = reference_man();
  for (const Option& option : options()) {
    EXPECT_NE(text.find("\n.B " + std::string(option.name) + "\n"), std::string::npos) << option.name;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.starts_with("'")) << line;
    EXPECT_TRUE(!line.starts_with(".") || line.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZnf") == 1) << line;
  }
}

}  // namespace
}  // namespace gradwire::config
