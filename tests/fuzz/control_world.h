// One node that coordinates its own jobs, in virtual time, with a fake engine: for fuzzing what is said to
// it.
#pragma once

#include <spdlog/spdlog.h>

#include <memory>

#include "tests/control/fakes.h"
#include "tests/fuzz/input.h"

namespace gradwire::control {

// Little enough that an input cannot make the target slow or take the machine's memory.
inline constexpr config::QuotaOptions kFuzzQuotas{16U << 20, 4, 16};

inline std::unique_ptr<testing::TestCluster> one_node() {
  spdlog::set_level(spdlog::level::off);
  auto cluster = std::make_unique<testing::TestCluster>(std::vector<std::string>{"a"});
  cluster->nodes[0]->context->quotas->set_limits(kFuzzQuotas);
  return cluster;
}

// A number at the beginning of a text; 0 if there is none.
inline uint32_t leading_number(std::string_view text, uint32_t limit) {
  uint64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || number > limit) {
      break;
    }
    number = 10 * number + static_cast<uint64_t>(c - '0');
  }
  return static_cast<uint32_t>(number > limit ? limit : number);
}

}  // namespace gradwire::control
