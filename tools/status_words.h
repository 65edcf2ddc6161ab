// Words for the numbers of the counters page; values that this command does not know are "unknown".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/counters_reader.h"

namespace gradwire::tools {

std::string_view name_of(layout::JobState state);
std::string_view name_of(layout::BucketPhase phase);
std::string_view name_of(layout::RankState state);
std::string_view name_of(layout::PeerState state);

// By the numbers of gw_dtype.
std::string_view dtype_name(uint32_t dtype);
uint64_t dtype_bytes(uint32_t dtype);  // of an element; 0: unknown
// By the kOp... numbers of session_layout.h; "" for 0.
std::string_view operation_name(uint32_t operation);

// Bytes of the bucket's elements; 0 where the type is unknown. Never overflows.
uint64_t bucket_bytes(const BucketCounters& bucket);

const JobCounters* find_job(const CountersPage& page, uint64_t id);  // null: the page has none of that number
// Whether the job has ended or was aborted: its records are of its last moment. False of a job that is not
// there.
bool is_over(const CountersPage& page, uint64_t job);

// The name of a node of a job; empty if the page has none.
std::string node_name(const CountersPage& page, uint64_t job, uint32_t node_index);

// Where a bucket's operation is: "reducing, hop 2 of 6, waits for node b".
std::string phase_sentence(const CountersPage& page, const BucketCounters& bucket);

}  // namespace gradwire::tools
