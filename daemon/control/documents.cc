#include "daemon/control/documents.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <optional>

#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

constexpr uint64_t kMaxEpoch = uint64_t{1} << 52;

std::optional<Code> code_from_name(std::string_view name) {
  for (int value = 1; value <= static_cast<int>(Code::kInternal); ++value) {
    if (code_name(static_cast<Code>(value)) == name) {
      return static_cast<Code>(value);
    }
  }
  return std::nullopt;
}

// "1.13" of "ucx 1.13.1", "0.1" of "0.1.0"
std::string major_minor(const std::string& version) {
  const size_t first = version.find('.');
  const size_t second = first == std::string::npos ? first : version.find('.', first + 1);
  return version.substr(0, second);
}

bool is_numeric_address(const std::string& text) {
  std::array<unsigned char, 16> address;
  return inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

std::vector<std::string> read_hosts(Fields& fields) {
  std::vector<std::string> hosts;
  const Json* entries = fields.array("data_hosts", kMaxDataHosts);
  for (size_t i = 0; entries != nullptr && i < entries->size(); ++i) {
    const auto* host = (*entries)[i].get_ptr<const std::string*>();
    if (host == nullptr || !is_numeric_address(*host)) {
      fields.complain("data_hosts", "has an entry that is not an IPv4 or IPv6 address in digits");
      return {};
    }
    hosts.push_back(*host);
  }
  return hosts;
}

// [name, number ...] with `numbers` numbers, the last of which may be -1 where there are three.
bool is_past_bucket(const Json& entry, size_t numbers) {
  if (!entry.is_array() || entry.size() != 1 + numbers || !entry[0].is_string()) {
    return false;
  }
  const auto& name = entry[0].get_ref<const std::string&>();
  bool good = !name.empty() && name.size() <= kMaxBucketName;
  for (size_t i = 1; i <= numbers; ++i) {
    const bool number = entry[i].is_number_unsigned() && entry[i].get<uint64_t>() <= (uint64_t{1} << 53);
    // A link inside the process keeps the sender's type: a rank is signed there.
    const bool rank = i == 3 && entry[i].is_number_integer() && entry[i].get<int64_t>() >= -1;
    good = good && (number || rank);
  }
  return good;
}

// Buckets as a node (one number) or as the coordinator (three) tells them.
std::vector<Past::Bucket> read_past_buckets(Fields& fields, size_t numbers) {
  std::vector<Past::Bucket> buckets;
  size_t names = 0;
  const Json* entries = fields.array("buckets", kMaxPastBuckets);
  for (size_t i = 0; entries != nullptr && i < entries->size(); ++i) {
    const Json& entry = (*entries)[i];
    if (!is_past_bucket(entry, numbers)) {
      fields.complain("buckets", "has an entry that is not a name and sequence numbers");
      return {};
    }
    Past::Bucket bucket;
    bucket.name = entry[0].get<std::string>();
    bucket.lowest = entry[1].get<uint64_t>();
    bucket.highest = numbers == 3 ? entry[2].get<uint64_t>() : bucket.lowest;
    const int64_t rank = numbers == 3 ? entry[3].get<int64_t>() : -1;
    names += bucket.name.size();
    if (bucket.lowest > bucket.highest || rank >= int64_t{kMaxWorld} || names > kMaxPastNames ||
        (i > 0 && bucket.name <= buckets.back().name)) {
      fields.complain("buckets", "has names out of order or too many, or a lowest number above the highest");
      return {};
    }
    bucket.highest_rank = static_cast<int32_t>(rank);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

Status check_epoch(const Epoch& epoch) {
  std::vector<bool> seen(epoch.world, false);
  uint64_t ranks = 0;
  for (const EpochNode& node : epoch.nodes) {
    if (node.ranks.empty() || !std::is_sorted(node.ranks.begin(), node.ranks.end())) {
      return Status(Code::kCorrupt, "a node of the epoch has no ranks, or not in ascending order");
    }
    for (const uint32_t rank : node.ranks) {
      if (rank >= epoch.world || seen[rank]) {
        return Status(Code::kCorrupt, "rank " + std::to_string(rank) + " of the epoch is twice or too high");
      }
      seen[rank] = true;
      ++ranks;
    }
  }
  for (size_t i = 0; epoch.past && i < epoch.past->buckets.size(); ++i) {
    if (epoch.past->buckets[i].highest_rank >= static_cast<int64_t>(epoch.world)) {
      return Status(Code::kCorrupt, "the epoch's past names a rank beyond its world");
    }
  }
  if (ranks != epoch.world || epoch.index >= epoch.nodes.size()) {
    return Status(Code::kCorrupt, "the epoch's nodes do not have its " + std::to_string(epoch.world) +
                                      " ranks, or its index is too high");
  }
  return ok_status();
}

}  // namespace

std::string describe(const JobIdentity& identity) {
  return "job '" + identity.name + "', run '" + identity.run_id + "'";
}

Json hello_document(const NodeInfo& node, const JobIdentity* job) {
  Json document{{"type", "hello"},
                {"protocol", kPeerProtocol},
                {"node", node.name},
                {"instance", to_hex(node.instance)},
                {"version", node.version},
                {"transport", node.transport},
                {"transport_address", to_hex(node.transport_address)},
                {"control_address", node.control_address},
                {"data_hosts", node.data_hosts},
                {"max_payload", node.max_payload},
                {"peer_timeout_ms", node.peer_timeout_ms},
                {"operation_timeout_ms", node.operation_timeout_ms}};
  if (job != nullptr) {
    document["job"] = {{"uid", job->uid}, {"name", job->name}, {"run_id", job->run_id}};
  }
  return document;
}

Result<NodeInfo> read_hello(const Json& document) {
  Fields fields(document);
  NodeInfo node;
  node.name = fields.text("node", 1, kMaxName);
  node.instance = fields.hex("instance", 16, 16);
  node.version = fields.text("version", 1, 31);
  node.transport = fields.text("transport", 1, 63);
  node.transport_address = fields.hex("transport_address", 0, kMaxTransportAddress);
  node.control_address = fields.text("control_address", 0, 300);
  if (fields.number<uint32_t>("protocol", 0, UINT32_MAX) == kPeerProtocol) {
    node.data_hosts = read_hosts(fields);
  }
  node.max_payload = fields.number<uint32_t>("max_payload", 1024, 1u << 30);
  node.peer_timeout_ms = fields.number("peer_timeout_ms", 1, uint64_t{1} << 40);
  node.operation_timeout_ms = fields.number("operation_timeout_ms", 1, uint64_t{1} << 40);
  if (!fields.ok()) {
    return fields.status().with_context("hello");
  }
  return node;
}

Result<JobIdentity> read_hello_job(const Json& document) {
  Fields outer(document);
  const Json* job = outer.object("job");
  if (job == nullptr) {
    return outer.status().with_context("hello");
  }
  Fields fields(*job);
  JobIdentity identity;
  identity.uid = fields.number<uint32_t>("uid", 0, UINT32_MAX);
  identity.name = fields.text("name", 1, kMaxJobName);
  identity.run_id = fields.text("run_id", 0, kMaxJobName);
  if (!fields.ok()) {
    return fields.status().with_context("hello, job");
  }
  return identity;
}

Status check_versions(uint32_t protocol, const NodeInfo& theirs, const NodeInfo& ours) {
  if (protocol == kPeerProtocol && major_minor(theirs.version) == major_minor(ours.version) &&
      major_minor(theirs.transport) == major_minor(ours.transport)) {
    return ok_status();
  }
  return Status(Code::kUnsupported, "node " + theirs.name + " runs gradwire " + theirs.version +
                                        " (peer protocol " + std::to_string(protocol) + ", " +
                                        theirs.transport + ") and node " + ours.name + " runs gradwire " +
                                        ours.version + " (peer protocol " + std::to_string(kPeerProtocol) +
                                        ", " + ours.transport + "): install the same versions on all nodes");
}

Json join_document(const RankJoin& join) {
  return {{"type", "join"},
          {"rank", join.rank},
          {"world", join.world},
          {"pid", join.pid},
          {"timeout_ms", join.timeout_ms},
          {"age_ms", join.age_ms},
          {"fresh", join.fresh}};
}

Result<RankJoin> read_join(const Json& document) {
  Fields fields(document);
  RankJoin join;
  join.world = fields.number<uint32_t>("world", 1, kMaxWorld);
  join.rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  join.pid = fields.number<int32_t>("pid", 0, INT32_MAX);
  join.timeout_ms = fields.number("timeout_ms", 1, uint64_t{1} << 40);
  join.age_ms = fields.number("age_ms", 0, uint64_t{1} << 53);
  join.fresh = fields.flag("fresh");
  if (!fields.ok()) {
    return fields.status().with_context("join");
  }
  return join;
}

Json merged_past_document(const Past& past) {
  Json buckets = Json::array();
  for (const Past::Bucket& bucket : past.buckets) {
    buckets.push_back(Json::array({bucket.name, bucket.lowest, bucket.highest, bucket.highest_rank}));
  }
  return {{"epoch", past.epoch}, {"unknown_nodes", past.unknown_nodes}, {"buckets", std::move(buckets)}};
}

Json node_past_document(const Past& past) {
  Json buckets = Json::array();
  for (const Past::Bucket& bucket : past.buckets) {
    buckets.push_back(Json::array({bucket.name, bucket.highest}));
  }
  return {{"type", "past"}, {"epoch", past.epoch}, {"buckets", std::move(buckets)}};
}

Result<Past> read_node_past(const Json& document) {
  Fields fields(document);
  Past past;
  past.epoch = fields.number("epoch", 1, kMaxEpoch);
  past.buckets = read_past_buckets(fields, 1);
  if (!fields.ok()) {
    return fields.status().with_context("past");
  }
  return past;
}

size_t limit_past(Past* past) {
  size_t kept = 0;
  size_t names = 0;
  while (kept < std::min(past->buckets.size(), kMaxPastBuckets) &&
         names + past->buckets[kept].name.size() <= kMaxPastNames) {
    names += past->buckets[kept++].name.size();
  }
  const size_t left_out = past->buckets.size() - kept;
  past->buckets.resize(kept);
  return left_out;
}

Json epoch_document(const Epoch& epoch) {
  Json nodes = Json::array();
  for (const EpochNode& node : epoch.nodes) {
    nodes.push_back({{"name", node.name},
                     {"instance", to_hex(node.instance)},
                     {"transport_address", to_hex(node.transport_address)},
                     {"control_address", node.control_address},
                     {"data_hosts", node.data_hosts},
                     {"ranks", node.ranks}});
  }
  Json document{{"type", "epoch"},      {"key", to_hex(epoch.key)}, {"counter", epoch.counter},
                {"world", epoch.world}, {"index", epoch.index},     {"max_payload", epoch.max_payload},
                {"fresh", epoch.fresh}, {"nodes", std::move(nodes)}};
  if (epoch.past) {
    document["past"] = merged_past_document(*epoch.past);
  }
  return document;
}

Result<Epoch> read_epoch(const Json& document) {
  Fields fields(document);
  Epoch epoch;
  epoch.key = fields.hex("key", 16, 16);
  epoch.counter = fields.number("counter", 1, kMaxEpoch + 1);
  epoch.world = fields.number<uint32_t>("world", 1, kMaxWorld);
  epoch.index = fields.number<uint32_t>("index", 0, kMaxWorld - 1);
  epoch.max_payload = fields.number<uint32_t>("max_payload", 1024, 1u << 30);
  epoch.fresh = fields.flag("fresh");
  const Json* nodes = fields.array("nodes", kMaxWorld);
  for (size_t i = 0; nodes != nullptr && i < nodes->size(); ++i) {
    Fields entry((*nodes)[i]);
    EpochNode node;
    node.name = entry.text("name", 1, kMaxName);
    node.instance = entry.hex("instance", 16, 16);
    node.transport_address = entry.hex("transport_address", 0, kMaxTransportAddress);
    node.control_address = entry.text("control_address", 0, 300);
    node.data_hosts = read_hosts(entry);
    node.ranks = entry.numbers("ranks", kMaxWorld, kMaxWorld - 1);
    if (!entry.ok()) {
      return entry.status().with_context("epoch, node " + std::to_string(i));
    }
    epoch.nodes.push_back(std::move(node));
  }
  if (document.is_object() && document.contains("past")) {
    const Json* const object = fields.object("past");
    static const Json kNothing = Json::object();
    Fields entry(object == nullptr ? kNothing : *object);
    Past past;
    past.epoch = entry.number("epoch", 1, kMaxEpoch);
    past.unknown_nodes = entry.number<uint32_t>("unknown_nodes", 0, kMaxWorld);
    past.buckets = read_past_buckets(entry, 3);
    if (!entry.ok()) {
      return entry.status().with_context("epoch, past");
    }
    epoch.past = std::move(past);
  }
  if (!fields.ok()) {
    return fields.status().with_context("epoch");
  }
  GRADWIRE_RETURN_IF_ERROR(check_epoch(epoch));
  return epoch;
}

Result<OperationName> read_operation(const Json& document) {
  Fields fields(document);
  OperationName operation;
  operation.bucket = fields.number<uint32_t>("bucket", 0, UINT32_MAX);
  operation.sequence = fields.number("sequence", 0, UINT64_MAX);
  if (!fields.ok()) {
    return fields.status();
  }
  return operation;
}

Json left_document(const char* type, const RankLeft& left) {
  return {{"type", type}, {"rank", left.rank}, {"last", left.last}};
}

Result<RankLeft> read_left(const Json& document) {
  Fields fields(document);
  RankLeft left;
  left.rank = fields.number<uint32_t>("rank", 0, kMaxWorld - 1);
  const Json* last = fields.array("last", 1u << 20);
  for (size_t i = 0; last != nullptr && i < last->size(); ++i) {
    const Json& entry = (*last)[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() ||
        !entry[1].is_number_unsigned() || entry[0].get<uint64_t>() > UINT32_MAX) {
      fields.complain("last", "has an entry that is not a pair of bucket and sequence number");
      break;
    }
    left.last.emplace_back(entry[0].get<uint32_t>(), entry[1].get<uint64_t>());
  }
  if (!fields.ok()) {
    return fields.status().with_context("rank left");
  }
  return left;
}

Json failure_document(const char* type, const Status& status) {
  return {{"type", type}, {"code", code_name(status.code())}, {"message", status.message()}};
}

Status read_failure(const Json& document) {
  const auto member = [&document](const char* name) {
    const auto found = document.find(name);
    return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string message = clean(member("message"), kMaxSentence);
  return Status(code_from_name(member("code")).value_or(Code::kAborted),
                message.empty() ? "the other daemon gave no cause" : message);
}

Status rank_gone_status(uint32_t rank, const std::string& node, const std::string& why) {
  return Status(Code::kAborted, "rank " + std::to_string(rank) + " on node " + node + " " + why);
}

Status too_late_status(uint32_t rank, const JobIdentity& identity) {
  return Status(
      Code::kAlreadyExists,
      "rank " + std::to_string(rank) + " of " + describe(identity) +
          " comes too late: all ranks have joined; end the process that has its place, or wait for the "
          "job's end");
}

std::string list_ranks(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += i == 0 ? "" : ",";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) {
    text += ",... (" + std::to_string(ranks.size()) + " in all)";
  }
  return text;
}

std::string describe_node(const std::string& name, const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) {
    return "node " + name;
  }
  return "node " + name + (ranks.size() == 1 ? " (rank " : " (ranks ") + list_ranks(ranks) + ")";
}

std::string format_duration_ms(uint64_t milliseconds) {
  if (milliseconds >= 1000 && milliseconds % 1000 == 0) {
    return std::to_string(milliseconds / 1000) + "s";
  }
  return std::to_string(milliseconds) + "ms";
}

}  // namespace gradwire::control
