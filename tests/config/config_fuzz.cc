// The fuzzer's entry: anything may be in a file, on the command line or in a peer's document. Built as a test
// with g++ (config_fuzz_test.cc drives it); clang's -fsanitize=fuzzer can drive it as well.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "config/apply.h"
#include "config/config.h"
#include "config/policy_json.h"
#include "config/yaml_tree.h"

using namespace gradwire;          // NOLINT(google-build-using-namespace)
using namespace gradwire::config;  // NOLINT(google-build-using-namespace)

namespace {

void require(bool holds, const char* what, const std::string& text) {
  if (!holds) {
    std::fprintf(stderr, "%s: %s\n", what, text.c_str());
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Applier applier;
  if (const Result<YamlNode> root = parse_yaml(text); root.ok()) {
    applier.apply_document(root.value(), "FILE");
  } else {
    require(!root.status().message().empty(), "a failure without a message", std::string(text));
    require(root.status().code() == Code::kInvalidArgument, "yaml-cpp failed in an unknown way",
            root.status().message());
  }
  if (applier.errors().empty()) {
    // What was accepted must survive its own dump.
    const std::string dump = dump_config(applier.loaded());
    const Result<YamlNode> again = parse_yaml(dump);
    require(again.ok(), "the dump is not YAML", dump);
    Applier second;
    second.apply_document(again.value(), "DUMP");
    // Names that load_config computes are still empty here, which a file cannot say.
    for (const std::string& error : second.errors()) {
      require(error.find("node.name: '' is empty") != std::string::npos ||
                  error.find("node.socket: '' is empty") != std::string::npos,
              "the dump is refused", error + "\n" + dump);
    }
    require(second.loaded().config == applier.loaded().config, "the dump differs", dump);
  }
  applier.apply_override(text);
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (const Result<CompressionPolicy> policy = policy_from_json(document); policy.ok()) {
    const Result<CompressionPolicy> again = policy_from_json(policy_to_json(policy.value()));
    require(again.ok() && again.value() == policy.value(), "the policy's JSON differs", std::string(text));
  }
  return 0;
}
