#include "config/policy.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/policy_json.h"

namespace gradwire::config {
namespace {

using nlohmann::json;

TEST(Glob, MatchesTheWholeName) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*.bias", "fc1.bias"));
  EXPECT_FALSE(glob_match("*.bias", "fc1.bias2"));
  EXPECT_TRUE(glob_match("layer?.w*", "layer3.weight"));
  EXPECT_FALSE(glob_match("layer?.w*", "layer12.weight"));
  EXPECT_FALSE(glob_match("bias", "fc.bias"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_TRUE(glob_match("a*b*c", "aXbXbXc"));
  EXPECT_FALSE(glob_match("a*b*c", "aXbXbX"));
  EXPECT_TRUE(glob_match("[a]", "[a]")) << "brackets are themselves";
}

TEST(Glob, StaysFastOnHostilePatterns) {
  std::string pattern;
  for (int i = 0; i < 128; ++i) {
    pattern += "*a";
  }
  EXPECT_FALSE(glob_match(pattern + "b", std::string(4096, 'a')));
}

CompressionPolicy example() {
  CompressionPolicy policy;
  policy.defaults.codec = "laco";
  policy.defaults.density = 1.0 / 3;
  policy.rules.resize(3);
  policy.rules[0].match = "*.bias";
  policy.rules[0].set.codec = "none";
  policy.rules[1].match = "embed*";
  policy.rules[1].set = {"lads",    1e-4,         1.5,  1ULL << 40,    1000.0,   0U,
                         "current", "stochastic", "16", "off",         "bucket", "gradient",
                         "on",      0.9,          2.5,  "exponential", "bf16"};
  policy.rules[2].match = "*";
  policy.rules[2].set.density = 0.1;
  return policy;
}

TEST(Policy, TheFirstRuleThatMatchesOverridesTheDefaults) {
  const CompressionPolicy policy = example();
  PolicySettings bias = policy.defaults;
  bias.codec = "none";
  EXPECT_EQ(resolve_policy(policy, "embed.bias"), bias);
  const PolicySettings embed{"lads",    1e-4,         1.5,  1ULL << 40,    1000.0,   0,
                             "current", "stochastic", "16", "off",         "bucket", "gradient",
                             "on",      0.9,          2.5,  "exponential", "bf16"};
  EXPECT_EQ(resolve_policy(policy, "embed.weight"), embed);
  EXPECT_EQ(resolve_policy(policy, "fc").density, 0.1);
  EXPECT_EQ(resolve_policy(policy, "fc").codec, "laco");
  EXPECT_EQ(resolve_policy({}, "fc"), PolicySettings());
}

TEST(PolicyJson, GivesBackWhatWentIn) {
  for (const CompressionPolicy& policy : {example(), CompressionPolicy()}) {
    const json document = json::parse(policy_to_json(policy).dump());
    const Result<CompressionPolicy> back = policy_from_json(document);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back.value(), policy);
  }
}

TEST(PolicyJson, RefusesWhatAPeerMustNotSend) {
  const auto refused = [](auto change) {
    json document = policy_to_json(example());
    change(document);
    const Result<CompressionPolicy> result = policy_from_json(document);
    EXPECT_EQ(result.status().code(), Code::kCorrupt) << document.dump();
    return result.status().message();
  };
  EXPECT_EQ(refused([](json& d) { d["defaults"]["codec"] = "zip"; }),
            "the job's compression policy: codec: 'zip' is not known; allowed none, fp16, bf16, l8, int8, "
            "int4, onebit, "
            "sign, lads, laco, topk or dropping; write for example laco; do all nodes run the same version?");
  refused([](json& d) { d["version"] = 2; });
  refused([](json& d) { d["version"] = "1"; });
  refused([](json& d) { d.erase("version"); });
  refused([](json& d) { d.erase("rules"); });
  refused([](json& d) { d.erase("defaults"); });
  refused([](json& d) { d["defaults"].erase("norm"); });
  refused([](json& d) { d["defaults"] = json::array(); });
  refused([](json& d) { d["extra"] = 1; });
  refused([](json& d) { d["defaults"]["rules"] = json::array(); });
  refused([](json& d) { d["defaults"]["match"] = "*"; });
  refused([](json& d) { d["defaults"]["density"] = 0; });
  refused([](json& d) { d["defaults"]["density"] = 1.5; });
  refused([](json& d) { d["defaults"]["density"] = "0.5"; });
  refused([](json& d) { d["defaults"]["density"] = std::numeric_limits<double>::quiet_NaN(); });
  refused([](json& d) { d["defaults"]["dense_below"] = -1; });
  refused([](json& d) { d["defaults"]["dense_below"] = 2.5; });
  refused([](json& d) { d["defaults"]["dense_below"] = nullptr; });
  refused([](json& d) { d["rules"] = json::object(); });
  refused([](json& d) { d["rules"][0] = 1; });
  refused([](json& d) { d["rules"][0].erase("match"); });
  refused([](json& d) { d["rules"][0]["match"] = ""; });
  refused([](json& d) { d["rules"][0]["match"] = "\xFF"; });
  refused([](json& d) { d["rules"][0]["warm_start_steps"] = 1e10; });
  refused([](json& d) { d["rules"] = json::array_t(kMaxPolicyRules + 1, json{{"match", "*"}}); });
  refused([](json& d) { d = json(); });
  refused([](json& d) { d = json::array({1}); });
}

}  // namespace
}  // namespace gradwire::config
