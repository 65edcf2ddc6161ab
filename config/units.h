// The units of durations and sizes. The first is what the options' limits count in.
#pragma once

#include <string_view>

namespace gradwire::config {

struct Unit {
  std::string_view name;
  double factor;
};

inline constexpr Unit kTimeUnits[] = {{"us", 1},     {"ms", 1e3},   {"s", 1e6},
                                      {"min", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
inline constexpr Unit kSizeUnits[] = {
    {"B", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};

}  // namespace gradwire::config
