// What daemons tell each other (docs/control-protocol.md, "Two daemons"), as structs with a reader and a
// writer each. Readers check every member; kCorrupt names the one that is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/fields.h"
#include "daemon/engine/engine.h"

namespace gradwire::control {

inline constexpr uint32_t kPeerProtocol = 3;
inline constexpr uint32_t kMaxWorld = 65536;
inline constexpr size_t kMaxName = 255;  // bytes of a node's name
inline constexpr size_t kMaxJobName = 127;
inline constexpr size_t kMaxSentence = 4096;
inline constexpr size_t kMaxTransportAddress = 64 << 10;
inline constexpr size_t kMaxDataHosts = 64;
inline constexpr size_t kMaxPastBuckets = 65536;
inline constexpr size_t kMaxPastNames = size_t{4} << 20;  // bytes of buckets' names in one document

struct JobIdentity {
  uint32_t uid = 0;
  std::string name;
  std::string run_id;
  auto operator<=>(const JobIdentity&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
std::string describe(const JobIdentity& identity);  // job 'name', run '0'
// The member data_hosts: addresses in digits.
std::vector<std::string> read_hosts(Fields& fields);

// A node, as it announces itself.
struct NodeInfo {
  std::string name;
  std::string instance;  // 16 random bytes of this daemon's life
  std::string version;
  std::string transport;                // "ucx 1.13.1"
  std::string transport_address;        // opaque bytes
  std::string control_address;          // "host:port", for people; may be empty
  std::vector<std::string> data_hosts;  // Transport::hosts()
  uint32_t max_payload = 0;
  uint64_t peer_timeout_ms = 0;
  uint64_t operation_timeout_ms = 0;
};

// First document in either direction; `job` only from the member. Of another protocol the reader takes only
// what every version has.
Json hello_document(const NodeInfo& node, const JobIdentity* job);
Result<NodeInfo> read_hello(const Json& document);
Result<JobIdentity> read_hello_job(const Json& document);
// kUnsupported: the two cannot work together; the sentence names both versions.
Status check_versions(uint32_t protocol, const NodeInfo& theirs, const NodeInfo& ours);

struct RankJoin {
  uint32_t rank = 0;
  uint32_t world = 1;
  int32_t pid = 0;
  uint64_t timeout_ms = 0;
  uint64_t age_ms = 0;  // of the trainer's process; 0: unknown
  bool fresh = false;   // the training starts anew
};
Json join_document(const RankJoin& join);
Result<RankJoin> read_join(const Json& document);

struct EpochNode {
  std::string name;
  std::string instance;
  std::string transport_address;
  std::string control_address;
  std::vector<std::string> data_hosts;
  std::vector<uint32_t> ranks;  // ascending, never empty
};

// How far a job's epoch before this one came: what one node says of itself, and what the coordinator makes of
// it for all.
struct Past {
  struct Bucket {
    std::string name;
    uint64_t lowest = 0, highest = 0;  // equal where a node speaks of itself
    int32_t highest_rank = -1;
  };
  uint64_t epoch = 0;
  uint32_t unknown_nodes = 0;
  std::vector<Bucket> buckets;  // ascending names
};
// Members epoch, unknown_nodes and buckets, of all nodes together: in the epoch, and in what trainers hear.
Json merged_past_document(const Past& past);
// What a node says of itself.
Json node_past_document(const Past& past);
Result<Past> read_node_past(const Json& document);
// Drops buckets at the end until names and entries fit into one document. Returns how many.
size_t limit_past(Past* past);

struct Epoch {
  std::string key;       // 16 bytes
  uint64_t counter = 0;  // 1 at first, one more each time the job comes back
  uint32_t world = 1;
  uint32_t index = 0;  // of the receiving node
  uint32_t max_payload = 0;
  bool fresh = false;            // what the nodes keep of the job is dropped
  std::vector<EpochNode> nodes;  // ring order
  std::optional<Past> past;
};
Json epoch_document(const Epoch& epoch);
Result<Epoch> read_epoch(const Json& document);

// Members bucket and sequence of a document that speaks of an operation.
struct OperationName {
  uint32_t bucket = 0;
  uint64_t sequence = 0;
};
Result<OperationName> read_operation(const Json& document);

using Sequences = std::vector<std::pair<uint32_t, uint64_t>>;  // bucket, sequence
struct RankLeft {
  uint32_t rank = 0;
  Sequences last;
};
Json left_document(const char* type, const RankLeft& left);
Result<RankLeft> read_left(const Json& document);

// Samples of the results of operations, in a beat: member `results`. At most engine::kMaxResultSamples.
// Absent, or of a scheme that this version does not sample by: nothing.
using Results = std::vector<engine::ResultSample>;
Json results_document(const Results& results);
Result<Results> read_results(const Json& document);

// {"type":type, "code":..., "message":...}
Json failure_document(const char* type, const Status& status);
// Never ok; odd documents give kAborted with what is readable.
Status read_failure(const Json& document);

// "rank 3 on node b died (pid 12)": the one sentence on a rank that is gone.
Status rank_gone_status(uint32_t rank, const std::string& node, const std::string& why);

// Of a rank that no place is left for.
Status too_late_status(uint32_t rank, const JobIdentity& identity);

// "2,3"; of more than 16 the first ones and how many there are.
std::string list_ranks(const std::vector<uint32_t>& ranks);
// "node b (ranks 2,3)"
std::string describe_node(const std::string& name, const std::vector<uint32_t>& ranks);
std::string format_duration_ms(uint64_t milliseconds);  // "3s", "250ms"

}  // namespace gradwire::control
