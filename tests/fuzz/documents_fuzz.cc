// Any text as a document: every reader takes it or says why not, and what was read is written and read again
// as the same.
#include <string>

#include "config/policy_json.h"
#include "daemon/control/cost_documents.h"
#include "daemon/control/documents.h"
#include "daemon/control/manifest.h"
#include "daemon/control/stall_watch.h"
#include "tests/fuzz/input.h"

namespace gradwire::control {
namespace {

using fuzz::require;

// What comes out of a link, where a policy is a part of another document.
Json sent(const Json& document) {
  const Result<Json> again = parse_document(write_document({{"type", "sent"}, {"part", document}}));
  require(again.ok(), "what is written can be parsed");
  return again->at("part");
}

template <typename Read, typename Write>
void check(const Json& document, Read read, Write write) {
  const auto first = read(document);
  if (!first.ok()) {
    require(!first.status().message().empty(), "a refusal says why");
    return;
  }
  const Json written = sent(write(*first));
  const auto second = read(written);
  require(second.ok(), "what was read can be sent on");
  require(sent(write(*second)) == written, "and is the same then");
}

void check_all(const Json& document) {
  check(document, read_hello, [](const NodeInfo& node) { return hello_document(node, nullptr); });
  check(document, read_hello_job, [](const JobIdentity& job) { return hello_document(NodeInfo{}, &job); });
  check(document, read_join, join_document);
  check(document, read_epoch, epoch_document);
  check(document, read_node_past, node_past_document);
  check(document, read_left, [](const RankLeft& left) { return left_document("leave", left); });
  check(document, read_stall, stall_document);
  check(document, read_results, results_document);
  check(document, read_measure, measure_document);
  check(
      document, [](const Json& each) { return read_measured(each, 1); }, measured_document);
  check(document, read_manifest, [](const Manifest& manifest) {
    Json written = {{"type", "bucket"}};
    write_manifest(manifest, &written);
    return written;
  });
  check(document, config::policy_from_json,
        [](const config::CompressionPolicy& policy) { return config::policy_to_json(policy); });
  const Status failure = read_failure(document);
  require(!failure.ok(), "a failure is never ok");
  require(!read_failure(sent(failure_document("failed", failure))).ok(), "nor when it is sent on");
}

}  // namespace
}  // namespace gradwire::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gradwire::control;  // NOLINT(google-build-using-namespace)
  const std::string text(reinterpret_cast<const char*>(data), size);
  const gradwire::Result<Json> document = parse_document(text);
  if (document.ok()) {
    check_all(*document);
  }
  // Documents within documents, and those that are no document at all, reach the readers too.
  const Json bare = Json::parse(text, nullptr, false);
  if (!bare.is_discarded() && text.size() < 4096) {
    check_all(bare);
  }
  return 0;
}
