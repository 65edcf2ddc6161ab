#include "config/values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "config/base/similar.h"
#include "config/format.h"
#include "config/text.h"

namespace gradwire::config {
namespace {

TEST(Table, NamesAreUniqueAndSectionsKnown) {
  std::set<std::string_view> names;
  for (const Option& option : options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_EQ(find_option(option.name), &option);
    EXPECT_FALSE(option.doc.empty()) << option.name;
    EXPECT_TRUE(std::ranges::any_of(sections(), [&](const Section& s) { return s.name == option.section(); }))
        << option.name;
  }
  EXPECT_EQ(find_option("clocks"), nullptr);
}

TEST(Table, ExamplesAndDefaultsAreAccepted) {
  for (const Option& option : options()) {
    if (option.type == Type::kUcxMap || option.type == Type::kRules) {
      continue;
    }
    Config config;
    const Status status = set_value(option, option.example, config);
    EXPECT_TRUE(status.ok()) << option.name << " " << status.message();
    if (option.default_note.empty()) {
      Config untouched;
      const Status standard = set_value(option, format_value(option, untouched), untouched);
      EXPECT_TRUE(standard.ok()) << option.name << " " << standard.message();
      EXPECT_EQ(untouched, Config()) << option.name;
    }
  }
}

TEST(Table, PolicySettingsAreTheOptionsOfCompression) {
  std::set<std::string> settings{"rules"};
  for_each_policy_setting([&](std::string_view name, auto, auto) { settings.emplace(name); });
  std::set<std::string> leaves;
  for (const Option& option : options()) {
    if (option.section() == "compression") {
      leaves.emplace(option.leaf());
    }
  }
  EXPECT_EQ(settings, leaves);
}

struct Case {
  std::string_view option;
  std::string_view text;
  std::string_view shown;  // empty: refused
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.option << "=" << c.text;
}

class Values : public testing::TestWithParam<Case> {};

TEST_P(Values, AreTakenExactlyOrRefused) {
  const auto& [name, text, shown] = GetParam();
  const Option* option = find_option(name);
  ASSERT_NE(option, nullptr);
  Config config;
  const Status status = set_value(*option, text, config);
  EXPECT_EQ(status.ok(), !shown.empty()) << status.message();
  if (status.ok()) {
    EXPECT_EQ(format_value(*option, config), shown);
  } else {
    EXPECT_EQ(config, Config()) << "a refused value must leave the old one";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, Values,
    testing::Values(
        Case{"clocks.peer_timeout", "0.1s", "100ms"}, Case{"clocks.peer_timeout", "600s", "10min"},
        Case{"clocks.peer_timeout", "100001us", "100001us"}, Case{"clocks.peer_timeout", "99999us", ""},
        Case{"clocks.peer_timeout", "600000001us", ""}, Case{"clocks.peer_timeout", "1000000.5us", ""},
        Case{"clocks.peer_timeout", "", ""}, Case{"clocks.peer_timeout", "s", ""},
        Case{"clocks.peer_timeout", "-2s", ""}, Case{"clocks.peer_timeout", "2 s", ""},
        Case{"clocks.peer_timeout", "2S", ""}, Case{"clocks.peer_timeout", "1m30s", ""},
        Case{"clocks.peer_timeout", "1e2s", ""}, Case{"clocks.peer_timeout", "1.2.3s", ""},
        Case{"clocks.peer_timeout", "nan", ""}, Case{"clocks.residual_ttl", "0ms", "0s"},
        Case{"clocks.residual_ttl", "0", ""}, Case{"clocks.operation_timeout", "24h", "1d"},
        Case{"transport.segment", "131072", "128KiB"}, Case{"transport.segment", "0.5MiB", "512KiB"},
        Case{"transport.segment", "73729B", "73729B"}, Case{"transport.segment", "128K", ""},
        Case{"transport.segment", "70000.5", ""}, Case{"transport.segment", "99999999999999999999999GiB", ""},
        Case{"plan.segment", "0B", "0B"}, Case{"plan.segment", "1B", ""},
        Case{"plan.segment", "72KiB", "72KiB"}, Case{"plan.segment", "2MiB", ""},
        Case{"plan.remeasure", "0s", "0s"}, Case{"plan.remeasure", "99ms", ""},
        Case{"quotas.bytes_per_user", "1TiB", "1TiB"}, Case{"compression.density", "1e-3", "0.001"},
        Case{"compression.density", "0", ""}, Case{"compression.density", "nan", ""},
        Case{"compression.density", "inf", ""}, Case{"compression.density", "1%", ""},
        Case{"compression.density", "0x1", ""},
        Case{"compression.dense_below", "1099511627776", "1099511627776"},
        Case{"compression.dense_below", "1099511627777", ""},
        Case{"compression.dense_below", "18446744073709551616", ""}, Case{"quotas.jobs_per_user", "+1", ""},
        Case{"quotas.jobs_per_user", "1.0", ""}, Case{"quotas.jobs_per_user", " 1", ""},
        Case{"quotas.jobs_per_user", "0", ""}, Case{"node.socket_mode", "666", "0666"},
        Case{"node.socket_mode", "0460", ""}, Case{"node.socket_mode", "01777", ""},
        Case{"peers.listen", "::1", "::1"}, Case{"peers.listen", "1.2.3", ""}, Case{"peers.listen", "", ""},
        Case{"log.level", "INFO", ""}, Case{"engine.spin", "off", "off"}, Case{"engine.spin", "20us", "20us"},
        Case{"engine.spin", "1s", ""}, Case{"engine.workers", "auto", "auto"},
        Case{"engine.workers", "257", ""}));

TEST(Table, EmptyTextIsAValueOnlyWhereTheTableSaysSo) {
  Config config;
  EXPECT_TRUE(set_value(*find_option("peers.key_file"), "", config).ok());
  EXPECT_TRUE(set_value(*find_option("transport.devices"), "", config).ok());
  EXPECT_FALSE(set_value(*find_option("node.runtime_dir"), "", config).ok());
  EXPECT_FALSE(set_value(*find_option("transport.tls"), "", config).ok());
}

TEST(Text, NearestFindsSlipsOnly) {
  const std::vector<std::string_view> names{"codec", "density", "norm"};
  EXPECT_EQ(nearest("codek", names), "codec");
  EXPECT_EQ(nearest("desnity", names), "density");
  EXPECT_EQ(nearest("nrom", names), "norm");
  EXPECT_EQ(nearest("kodek", names), std::nullopt);
  EXPECT_EQ(nearest("", names), std::nullopt);
  EXPECT_EQ(nearest(std::string(10000, 'a'), names), std::nullopt);
}

TEST(Text, QuotesShortenAndEscape) {
  EXPECT_EQ(in_quotes("a\nb\xFF"), "'a\\x0ab\\xff'");
  EXPECT_EQ(in_quotes("a\xC2\x9B"), "'a\\xc2\\x9b'");
  EXPECT_EQ(in_quotes(std::string(61, 'a')), "'" + std::string(60, 'a') + "...'");
  EXPECT_EQ(in_quotes(std::string(59, 'a') + "\xC3\xA9"), "'" + std::string(59, 'a') + "\xC3\xA9'");
}

}  // namespace
}  // namespace gradwire::config
