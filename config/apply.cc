#include "config/apply.h"

#include <algorithm>

#include "config/base/one_line.h"
#include "config/base/similar.h"
#include "config/format.h"
#include "config/text.h"
#include "config/values.h"

namespace gradwire::config {
namespace {

constexpr size_t kMaxErrors = 100;  // a file that is something else entirely should not flood the terminal
constexpr std::string_view kCommandLine = "command line";

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates,
                         std::string_view otherwise) {
  const auto near = nearest(word, candidates);
  return near ? "; did you mean '" + std::string(*near) + "'?" : std::string(otherwise);
}

std::vector<std::string_view> section_names() {
  std::vector<std::string_view> names;
  for (const Section& section : sections()) {
    names.push_back(section.name);
  }
  return names;
}

std::vector<std::string_view> leaves(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Option& option : options()) {
    if (option.section() == section) {
      names.push_back(option.leaf());
    }
  }
  return names;
}

// The full name of an option that stands in another section than `word` was written in.
std::vector<std::string_view> elsewhere(std::string_view word) {
  for (const Option& option : options()) {
    if (option.leaf() == word) {
      return {option.name};
    }
  }
  return {};
}

std::string unknown_section(std::string_view word) {
  if (const Option* option = find_option(word)) {
    return "options stand below their section; write '" + std::string(option->section()) +
           ":' and below it '  " + std::string(option->leaf()) + ": ...'";
  }
  if (const auto moved = elsewhere(word); !moved.empty()) {
    return "unknown section; did you mean '" + std::string(moved.front()) + "'?";
  }
  return "unknown section" +
         did_you_mean(word, section_names(), "; sections are " + list_words(section_names()));
}

std::string unknown_option(std::string_view section, std::string_view word) {
  if (const auto moved = elsewhere(word); !moved.empty()) {
    return "unknown option; did you mean '" + std::string(moved.front()) + "'?";
  }
  return "unknown option" +
         did_you_mean(word, leaves(section),
                      "; options of " + std::string(section) + " are " + list_words(leaves(section)));
}

}  // namespace

std::string shown_path(std::string_view path) {
  return without_controls(path, '?');
}

Applier::Applier() {
  for (const Option& option : options()) {
    loaded_.sources.emplace(option.name, Source());
  }
}

void Applier::fail(std::string message) {
  if (errors_.size() < kMaxErrors) {
    errors_.push_back(std::move(message));
  } else if (errors_.size() == kMaxErrors) {
    errors_.emplace_back("more errors are not shown");
  }
}

void Applier::fail_at(std::string_view at, std::string_view option, std::string_view what) {
  const auto found = places_.find(at);
  const std::string where = found == places_.end() ? "default" : found->second;
  fail(where + ": " + std::string(option) + ": " + std::string(what));
}

void Applier::fail_node(const YamlNode& node, std::string_view path, std::string_view what) {
  fail(place(node) + ": " + (path.empty() ? "" : std::string(path) + ": ") + std::string(what));
}

bool Applier::is_default(std::string_view option) const {
  const auto found = loaded_.sources.find(option);
  return found != loaded_.sources.end() && found->second.kind == Source::Kind::kDefault;
}

std::string Applier::place(const YamlNode& node) const {
  return file_.empty() ? std::string(kCommandLine)
                       : file_ + ":" + std::to_string(node.line) + ":" + std::to_string(node.column);
}

void Applier::note(const Option& option, const YamlNode& key) {
  places_.insert_or_assign(std::string(option.name), place(key));
  loaded_.sources.insert_or_assign(std::string(option.name),
                                   file_.empty()
                                       ? Source{Source::Kind::kCommandLine, std::string(kCommandLine)}
                                       : Source{Source::Kind::kFile, file_ + ":" + std::to_string(key.line)});
}

template <typename Entry>
void Applier::for_each_entry(const YamlNode& map, std::string_view path, Entry entry) {
  std::map<std::string_view, int> seen;
  for (size_t i = 0; i < map.items.size() && errors_.size() <= kMaxErrors; ++i) {
    const YamlNode& key = map.keys[i];
    const std::string full = (path.empty() ? "" : std::string(path) + ".") + key.text;
    const auto [first, fresh] = seen.emplace(key.text, key.line);
    if (fresh) {
      entry(key, map.items[i]);
    } else {
      fail_node(key, shown_path(full),
                "given twice, first in line " + std::to_string(first->second) + "; remove one");
    }
  }
}

void Applier::apply_document(const YamlNode& root, const std::string& file) {
  file_ = file;
  if (root.kind == YamlNode::Kind::kMap) {
    for_each_entry(root, "", [&](const YamlNode& key, const YamlNode& value) {
      const auto section = std::ranges::find(sections(), key.text, &Section::name);
      if (section == sections().end()) {
        fail_node(key, in_quotes(key.text), unknown_section(key.text));
      } else {
        apply_section(*section, key, value);
      }
    });
  } else if (root.kind != YamlNode::Kind::kNull) {
    fail_node(root, "",
              std::string(root.kind == YamlNode::Kind::kList ? "a list" : "a value") +
                  " where sections are expected; write for example 'clocks: {peer_timeout: 2s}'");
  }
  file_.clear();
}

void Applier::apply_section(const Section& section, const YamlNode& key, const YamlNode& value) {
  if (value.kind == YamlNode::Kind::kNull) {
    return;  // a section whose options are all commented out
  }
  if (value.kind != YamlNode::Kind::kMap) {
    fail_node(key, section.name,
              std::string(value.kind == YamlNode::Kind::kList ? "a list" : "a value") +
                  " where options are expected; write for example '" + std::string(section.name) + ": {" +
                  std::string(leaves(section.name).front()) + ": ...}'");
    return;
  }
  for_each_entry(value, section.name, [&](const YamlNode& leaf, const YamlNode& item) {
    const std::string name = std::string(section.name) + "." + leaf.text;
    if (const Option* option = find_option(name)) {
      apply_option(*option, leaf, item);
    } else {
      fail_node(leaf, std::string(section.name) + "." + in_quotes(leaf.text),
                unknown_option(section.name, leaf.text));
    }
  });
}

bool Applier::expect_scalar(const YamlNode& key, const YamlNode& value, std::string_view path,
                            std::string_view example) {
  switch (value.kind) {
    case YamlNode::Kind::kScalar:
      return true;
    case YamlNode::Kind::kNull:
      fail_node(key, path,
                "has no value; write for example " + std::string(example) + ", or remove the line");
      return false;
    case YamlNode::Kind::kMap:
    case YamlNode::Kind::kList:
      fail_node(value, path,
                std::string(value.kind == YamlNode::Kind::kList ? "a list" : "a map") +
                    " where one value is expected; write for example " + std::string(example));
      return false;
  }
  return false;
}

void Applier::apply_option(const Option& option, const YamlNode& key, const YamlNode& value) {
  note(option, key);
  if (option.type == Type::kUcxMap) {
    apply_ucx(option, value);
  } else if (option.type == Type::kRules) {
    apply_rules(option, value);
  } else if (expect_scalar(key, value, option.name, option.example)) {
    if (const Status status = set_value(option, value.text, loaded_.config); !status.ok()) {
      fail_node(value, option.name, status.message());
    }
  }
}

void Applier::apply_ucx(const Option& option, const YamlNode& value) {
  if (value.kind != YamlNode::Kind::kMap) {
    fail_node(value, option.name, "is not a map; write for example " + std::string(option.example));
    return;
  }
  if (value.items.size() > kMaxUcxSettings) {
    fail_node(value, option.name,
              "has " + std::to_string(value.items.size()) + " settings; allowed " + allowed_values(option));
    return;
  }
  auto& settings = loaded_.config.transport.ucx;
  settings.clear();
  for_each_entry(value, option.name, [&](const YamlNode& name, const YamlNode& item) {
    if (!expect_scalar(name, item, std::string(option.name) + "." + in_quotes(name.text), "\"y\"")) {
      return;
    }
    if (const Status status = check_ucx_setting(name.text, item.text); !status.ok()) {
      fail_node(name, option.name, status.message());
    }
    settings[name.text] = item.text;
  });
}

void Applier::apply_rules(const Option& option, const YamlNode& value) {
  if (value.kind != YamlNode::Kind::kList) {
    fail_node(value, option.name, "is not a list; write for example " + std::string(option.example));
    return;
  }
  if (value.items.size() > kMaxPolicyRules) {
    fail_node(value, option.name,
              "has " + std::to_string(value.items.size()) + " rules; allowed " + allowed_values(option));
    return;
  }
  std::vector<PolicyRule> rules;
  for (size_t i = 0; i < value.items.size(); ++i) {
    rules.push_back(read_rule(value.items[i], std::string(option.name) + "[" + std::to_string(i) + "]"));
  }
  loaded_.config.compression.rules = std::move(rules);
}

PolicyRule Applier::read_rule(const YamlNode& node, const std::string& path) {
  PolicyRule rule;
  if (node.kind != YamlNode::Kind::kMap) {
    fail_node(node, path, "is not a map; write for example {match: \"*.bias\", codec: none}");
    return rule;
  }
  bool matched = false;
  for_each_entry(node, path, [&](const YamlNode& key, const YamlNode& item) {
    const std::string name = path + "." + shown_path(key.text);
    const Option* option = find_option("compression." + key.text);
    const bool is_match = key.text == "match";
    if (!is_match && (option == nullptr || option->type == Type::kRules)) {
      std::vector<std::string_view> known = leaves("compression");
      std::ranges::replace(known, "rules", "match");
      fail_node(key, path + "." + in_quotes(key.text),
                "unknown setting" + did_you_mean(key.text, known, "; a rule has " + list_words(known)));
      return;
    }
    matched |= is_match;
    if (expect_scalar(key, item, name, is_match ? "\"*.bias\"" : option->example)) {
      const Status status = is_match ? check_match(item.text) : set_override(*option, item.text, rule.set);
      if (!status.ok()) {
        fail_node(item, name, status.message());
      } else if (is_match) {
        rule.match = item.text;
      }
    }
  });
  if (!matched) {
    fail_node(node, path, "has no match; write for example match: \"*.bias\"");
  }
  return rule;
}

void Applier::apply_text(std::string_view name, std::string_view value, const Source& source) {
  const Option* const option = find_option(name);
  places_.insert_or_assign(std::string(name), source.text);
  loaded_.sources.insert_or_assign(std::string(name), source);
  if (const Status status = set_value(*option, value, loaded_.config); !status.ok()) {
    fail(source.text + ": " + std::string(name) + ": " + status.message());
  }
}

void Applier::apply_override(std::string_view text) {
  const Source source{Source::Kind::kCommandLine, std::string(kCommandLine)};
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    fail(source.text + ": " + in_quotes(text) +
         " is not NAME=VALUE; write for example clocks.peer_timeout=2s");
    return;
  }
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);
  constexpr std::string_view kUcxPrefix = "transport.ucx.";
  const Option* const option = find_option(name);
  if (name.starts_with(kUcxPrefix)) {
    const std::string setting(name.substr(kUcxPrefix.size()));
    if (const Status status = check_ucx_setting(setting, value); !status.ok()) {
      fail(source.text + ": transport.ucx: " + status.message());
      return;
    }
    loaded_.sources.insert_or_assign("transport.ucx", source);
    loaded_.config.transport.ucx[setting] = value;
  } else if (option == nullptr) {
    std::vector<std::string_view> names = elsewhere(name);
    if (names.empty()) {
      std::ranges::transform(options(), std::back_inserter(names), &Option::name);
    }
    const std::string hint = names.size() == 1 ? "; did you mean '" + std::string(names.front()) + "'?"
                                               : did_you_mean(name, names, "; names are SECTION.OPTION");
    fail(source.text + ": " + in_quotes(name) + ": unknown option" + hint);
  } else if (option->type == Type::kUcxMap || option->type == Type::kRules) {
    const Result<YamlNode> node = parse_yaml(value);
    if (node.ok()) {
      apply_option(*option, *node, *node);
    } else {
      fail(source.text + ": " + std::string(name) + ": " + node.status().message());
    }
  } else {
    apply_text(name, value, source);
  }
}

}  // namespace gradwire::config
