// A directory of its own for each test, gone at its end; $RUNTIME_DIRECTORY as the test sets it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "config/config.h"

namespace gradwire::config {

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() {
    std::string name = testing::TempDir() + "gradwire_config_XXXXXX";
    directory_ = mkdtemp(name.data()) == nullptr ? "" : name;
    unsetenv("RUNTIME_DIRECTORY");
  }
  ~ConfigTest() override {
    unsetenv("RUNTIME_DIRECTORY");
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  void SetUp() override { ASSERT_FALSE(directory_.empty()); }

  std::string path(const std::string& name = "c.yaml") const { return directory_ + "/" + name; }

  std::string write(std::string_view text, const std::string& name = "c.yaml", mode_t mode = 0600) const {
    std::ofstream(path(name), std::ios::binary) << text;
    EXPECT_EQ(chmod(path(name).c_str(), mode), 0);
    return path(name);
  }

  Result<LoadedConfig> load(std::string_view text, const std::vector<std::string>& overrides = {}) const {
    return load_config(write(text), overrides);
  }

  // The message with the file's path as FILE; "" where loading succeeds.
  std::string error(std::string_view text, const std::vector<std::string>& overrides = {}) const {
    std::string message = load(text, overrides).status().message();
    for (size_t at = 0; (at = message.find(path(), at)) != std::string::npos;) {
      message.replace(at, path().size(), "FILE");
    }
    return message;
  }

 private:
  std::string directory_;
};

}  // namespace gradwire::config
