// Puts values from files, the environment and the command line into a LoadedConfig and collects what is
// wrong.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/options.h"
#include "config/yaml_tree.h"

namespace gradwire::config {

// A path as messages and comments show it: without control characters.
std::string shown_path(std::string_view path);

class Applier {
 public:
  Applier();

  void apply_document(const YamlNode& root, const std::string& file);
  void apply_override(std::string_view text);  // "SECTION.OPTION=VALUE" from the command line
  void apply_text(std::string_view option, std::string_view value, const Source& source);

  void fail(std::string message);
  // A fault of `option` at the place where `at` was set.
  void fail_at(std::string_view at, std::string_view option, std::string_view what);
  bool is_default(std::string_view option) const;

  const LoadedConfig& loaded() const { return loaded_; }
  const std::vector<std::string>& errors() const { return errors_; }
  LoadedConfig take() { return std::move(loaded_); }

 private:
  template <typename Entry>
  void for_each_entry(const YamlNode& map, std::string_view path, Entry entry);
  void apply_section(const Section& section, const YamlNode& key, const YamlNode& value);
  void apply_option(const Option& option, const YamlNode& key, const YamlNode& value);
  void apply_ucx(const Option& option, const YamlNode& value);
  void apply_rules(const Option& option, const YamlNode& value);
  PolicyRule read_rule(const YamlNode& node, const std::string& path);
  // True if the node is a scalar; else says what it is instead.
  bool expect_scalar(const YamlNode& key, const YamlNode& value, std::string_view path,
                     std::string_view example);
  void note(const Option& option, const YamlNode& key);
  void fail_node(const YamlNode& node, std::string_view path, std::string_view what);
  std::string place(const YamlNode& node) const;

  LoadedConfig loaded_;
  std::vector<std::string> errors_;
  std::map<std::string, std::string, std::less<>> places_;  // by option, where it was set last
  std::string file_;                                        // being applied; empty: the command line
};

}  // namespace gradwire::config
