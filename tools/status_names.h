// Words for the enumerations of the counters page; values that this command does not know are "unknown".
#pragma once

#include <string_view>

#include "client/layout/counters_layout.h"

namespace gradwire::tools {

constexpr std::string_view name_of(layout::JobState state) {
  switch (state) {
    case layout::JobState::kFree:
      return "free";
    case layout::JobState::kForming:
      return "forming";
    case layout::JobState::kRunning:
      return "running";
    case layout::JobState::kAborted:
      return "aborted";
    case layout::JobState::kEnded:
      return "ended";
  }
  return "unknown";
}

constexpr std::string_view name_of(layout::BucketPhase phase) {
  switch (phase) {
    case layout::BucketPhase::kIdle:
      return "idle";
    case layout::BucketPhase::kGathering:
      return "gathering";
    case layout::BucketPhase::kReducing:
      return "reducing";
    case layout::BucketPhase::kDistributing:
      return "distributing";
    case layout::BucketPhase::kDone:
      return "done";
  }
  return "unknown";
}

constexpr std::string_view name_of(layout::RankState state) {
  switch (state) {
    case layout::RankState::kAttached:
      return "attached";
    case layout::RankState::kGone:
      return "gone";
    case layout::RankState::kLeft:
      return "left";
  }
  return "unknown";
}

constexpr std::string_view name_of(layout::PeerState state) {
  switch (state) {
    case layout::PeerState::kConnecting:
      return "connecting";
    case layout::PeerState::kUp:
      return "up";
    case layout::PeerState::kLost:
      return "lost";
  }
  return "unknown";
}

// By the numbers of gw_dtype.
constexpr std::string_view dtype_name(uint32_t dtype) {
  constexpr std::string_view kNames[] = {"float32", "float16", "bfloat16", "float64",
                                         "int32",   "int64",   "uint8"};
  return dtype < std::size(kNames) ? kNames[dtype] : "unknown";
}

}  // namespace gradwire::tools
