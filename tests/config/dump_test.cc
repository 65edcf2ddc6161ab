#include <algorithm>
#include <random>

#include "config/format.h"
#include "config/options.h"
#include "tests/config/support.h"

namespace gradwire::config {
namespace {

class Dump : public ConfigTest {
 protected:
  void expect_round_trip(const LoadedConfig& loaded) {
    const std::string text = dump_config(loaded);
    const Result<LoadedConfig> again = load(text);
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
    EXPECT_EQ(again.value().config, loaded.config) << text;
  }
};

TEST_F(Dump, ShowsDefaultAndSourceOfEachValue) {
  const std::string file = write("clocks:\n  peer_timeout: 3s\n  stall_warning: 5s\n");
  const Result<LoadedConfig> loaded =
      load_config(file, {"compression.codec=laco", "compression.rules=[{match: '*.bias', codec: none}]"});
  ASSERT_TRUE(loaded.ok());
  const std::string text = dump_config(loaded.value());
  EXPECT_NE(text.find("\n  peer_timeout: 3s  # default 2s; from " + file + ":2\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\n  stall_warning: 5s  # from " + file + ":3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  operation_timeout: 5min  # default\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  codec: laco  # default none; from command line\n"), std::string::npos) << text;
  EXPECT_NE(
      text.find("\n  rules:  # default []; from command line\n    - {match: \"*.bias\", codec: none}\n"),
      std::string::npos)
      << text;
}

TEST_F(Dump, HasEveryOptionAndReadsBackEqual) {
  const LoadedConfig loaded = load_config(std::nullopt, {}).value();
  const std::string text = dump_config(loaded);
  for (const Option& option : options()) {
    EXPECT_NE(text.find("\n  " + std::string(option.leaf()) + ": "), std::string::npos) << option.name;
  }
  expect_round_trip(loaded);
}

std::string random_text(std::mt19937& random, size_t longest) {
  static constexpr std::string_view kPieces[] = {"a", "Z", "9", " ", ":",  "#",  "'",    "\"", "\\",
                                                 "*", "?", "{", "]", ",",  "-",  "null", "~",  "\xC3\xA9",
                                                 "%", "&", "!", "|", ": ", " #", "yes"};
  std::string text;
  while (true) {
    const std::string_view piece = kPieces[random() % std::size(kPieces)];
    if (text.size() + piece.size() > longest || (!text.empty() && random() % 8 == 0)) {
      return text.empty() ? "x" : text;
    }
    text += piece;
  }
}

// Any value within an option's limits.
void randomise(const Option& option, Config& config, std::mt19937& random) {
  const auto within = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::string>) {
          if (!option.choices.empty()) {
            *target = option.choices[random() % option.choices.size()];
          } else if (option.type == Type::kAddress) {
            *target = random() % 2 == 0 ? "fe80::1" : "127.0.0.1";
          } else {
            *target = (option.type == Type::kPath ? "/" : "") +
                      random_text(random, static_cast<size_t>(option.max) - 1);
          }
        } else if constexpr (std::is_same_v<T, double>) {
          *target = random() % 4 == 0 ? option.min : within(option.min, option.max);
        } else if constexpr (std::is_arithmetic_v<T>) {
          *target = static_cast<T>(within(option.min, option.max));
          if (option.type == Type::kMode) {
            *target |= 0600;
          }
        } else if constexpr (std::is_same_v<T, Duration>) {
          *target = Duration(static_cast<int64_t>(within(option.min, option.max)));
        } else if constexpr (std::is_same_v<T, std::optional<Duration>>) {
          *target = random() % 2 == 0 ? std::nullopt : std::optional(Duration(random() % 10000));
        } else if constexpr (std::is_same_v<T, std::optional<uint32_t>>) {
          *target = random() % 2 == 0 ? std::nullopt : std::optional<uint32_t>(random() % 257);
        } else if constexpr (std::is_same_v<T, std::map<std::string, std::string>>) {
          for (size_t i = random() % 4; i > 0; --i) {
            (*target)["NAME_" + std::to_string(random() % 9)] = random_text(random, 100);
          }
        } else {
          for (size_t i = random() % 5; i > 0; --i) {
            PolicyRule rule{random_text(random, kMaxMatchBytes), {}};
            if (random() % 2 == 0) {
              rule.set.codec = "lads";
              rule.set.density = within(1e-6, 1);
            }
            if (random() % 2 == 0) {
              rule.set.dense_below = random() % 100000;
              rule.set.norm = "current";
            }
            target->push_back(rule);
          }
        }
      },
      option.field(config));
}

TEST_F(Dump, OfRandomConfigurationsReadsBackEqual) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    LoadedConfig loaded;
    for (const Option& option : options()) {
      randomise(option, loaded.config, random);
    }
    loaded.config.clocks.operation_timeout =
        std::max(loaded.config.clocks.operation_timeout, loaded.config.clocks.peer_timeout);
    ASSERT_NO_FATAL_FAILURE(expect_round_trip(loaded));
  }
}

TEST(Changes, AreNamedWithBothValuesInTheOrderOfTheTable) {
  const Config before;
  EXPECT_TRUE(list_changes(before, before).empty());
  Config after;
  after.log.level = "warn";
  after.clocks.drain_timeout = Duration(0);
  after.transport.ucx["TCP_CM_REUSEADDR"] = "y";
  after.compression.rules = {{"*.bias", {}}};
  const std::vector<Change> changes = list_changes(before, after);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].option, "clocks.drain_timeout");
  EXPECT_EQ(changes[0].before, "5s");
  EXPECT_EQ(changes[0].after, "0s");
  EXPECT_EQ(changes[1].option, "transport.ucx");
  EXPECT_EQ(changes[1].after, "{TCP_CM_REUSEADDR: y}");
  EXPECT_EQ(changes[2].option, "log.level");
  EXPECT_EQ(changes[3].option, "compression.rules");
  EXPECT_EQ(changes[3].before, "[]");
}

}  // namespace
}  // namespace gradwire::config
