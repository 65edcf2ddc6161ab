// A directory that is gone after the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace gradwire::control {

class Runtime : public ::testing::Test {
 protected:
  Runtime() {
    char name[] = "/tmp/gradwire-control-XXXXXX";
    if (mkdtemp(name) == nullptr) {
      throw std::runtime_error("cannot make a directory in /tmp");
    }
    directory_ = name;
  }
  ~Runtime() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  std::string directory_;
};

}  // namespace gradwire::control
