#include <algorithm>

#include "config/base/one_line.h"
#include "daemon/control/documents.h"
#include "daemon/control/manifest.h"

namespace gradwire::control {
namespace {

constexpr uint64_t kMaxEpoch = uint64_t{1} << 52;

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
    if (find_control(bucket.name)) {
      fields.complain("buckets", "has a name with a control character");
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

}  // namespace gradwire::control
