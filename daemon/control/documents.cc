#include "daemon/control/documents.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace gradwire::control {
namespace {

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

constexpr uint32_t kResultScheme = 1;  // what is sampled of which operations, and how it is hashed

std::string big_endian(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift);
  }
  return bytes;
}

// [bucket, sequence, HEX8]
std::optional<engine::ResultSample> result_sample(const Json& entry) {
  constexpr uint64_t kMostSequence = uint64_t{1} << 53;
  if (!entry.is_array() || entry.size() != 3 || !entry[0].is_number_unsigned() ||
      !entry[1].is_number_unsigned() || !entry[2].is_string()) {
    return std::nullopt;
  }
  const auto bucket = entry[0].get<uint64_t>();
  const auto sequence = entry[1].get<uint64_t>();
  const auto& digits = entry[2].get_ref<const std::string&>();
  uint64_t hash = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  if (bucket == 0 || bucket > UINT32_MAX || sequence == 0 || sequence > kMostSequence ||
      digits.size() != 16 || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return engine::ResultSample{static_cast<uint32_t>(bucket), sequence, hash};
}

bool is_numeric_address(const std::string& text) {
  std::array<unsigned char, 16> address;
  return inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

}  // namespace

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

Json results_document(const Results& results) {
  Json samples = Json::array();
  for (const engine::ResultSample& each : results) {
    samples.push_back(Json::array({each.bucket, each.sequence, to_hex(big_endian(each.hash))}));
  }
  return {{"type", "beat"}, {"results", {{"scheme", kResultScheme}, {"samples", std::move(samples)}}}};
}

Result<Results> read_results(const Json& document) {
  Results results;
  if (!document.is_object() || !document.contains("results")) {
    return results;
  }
  Fields outer(document);
  const Json* const object = outer.object("results");
  if (object == nullptr) {
    return outer.status().with_context("beat");
  }
  Fields fields(*object);
  if (fields.number<uint32_t>("scheme", 1, UINT32_MAX) != kResultScheme) {
    return fields.ok() ? Result<Results>(results) : fields.status().with_context("beat, results");
  }
  const Json* const samples = fields.array("samples", engine::kMaxResultSamples);
  for (size_t i = 0; samples != nullptr && i < samples->size(); ++i) {
    const std::optional<engine::ResultSample> sample = result_sample((*samples)[i]);
    if (!sample) {
      fields.complain("samples", "has an entry that is not a bucket, a sequence number and 16 hex digits");
      break;
    }
    results.push_back(*sample);
  }
  if (!fields.ok()) {
    return fields.status().with_context("beat, results");
  }
  return results;
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
