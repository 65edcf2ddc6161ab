// A directory that is gone after the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gradwire::control {

class Runtime : public ::testing::Test {
 protected:
  Runtime() {
    char name[] = "/tmp/gradwire-control-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~Runtime() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

}  // namespace gradwire::control
