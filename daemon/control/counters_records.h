// Records of the counters page (client/layout/counters_layout.h), filled from what the control thread and the
// engine know. The records are blank before, and have no place yet.
#pragma once

#include <cstring>
#include <string>

#include "client/layout/counters_layout.h"
#include "config/base/one_line.h"
#include "daemon/control/member.h"
#include "daemon/engine/snapshot.h"

namespace gradwire::control {

// A record whose padding is zero, too: other users read the file, and equal records have equal bytes.
template <typename Record>
struct Blank {
  Blank() { std::memset(static_cast<void*>(&record), 0, sizeof(record)); }
  Record record;
};

// Cut to the field's size, between characters; the field is zero before.
template <size_t N>
void put(char (&field)[N], const std::string& text) {
  const std::string_view shown = beginning(text, N - 1);
  std::memcpy(field, shown.data(), shown.size());
}

void fill(const JobFacts& job, const engine::JobSnapshot& snapshot, layout::JobRecord* record);
// `seen` is nullptr where the engine does not know the rank.
void fill(uint64_t job, const JobFacts::Rank& rank, const engine::RankSnapshot* seen,
          layout::RankRecord* record);
void fill(uint64_t job, const engine::BucketSnapshot& bucket, layout::BucketRecord* record);
void fill(uint64_t job, uint64_t id, const JobFacts::Peer& peer, const std::string& path,
          layout::PeerRecord* record);

}  // namespace gradwire::control
