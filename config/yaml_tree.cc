#include "config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "config/text.h"

namespace gradwire::config {
namespace {

std::string at(int line, int column, std::string_view what) {
  return std::to_string(line) + ":" + std::to_string(column) + ": " + std::string(what);
}

constexpr std::string_view kStar =
    "a value that starts with '*' is a YAML alias, which is not supported; put a pattern in quotes: "
    "\"*.bias\"";

// Leaves yaml-cpp's parser from inside a callback.
struct Refusal : std::exception {
  Refusal(const YAML::Mark& mark, std::string_view what)
      : message(at(mark.line + 1, mark.column + 1, what)) {}
  const char* what() const noexcept override { return message.c_str(); }
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, "", anchor, YamlNode::Kind::kNull);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { throw Refusal(mark, kStar); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(mark, tag, anchor, YamlNode::Kind::kScalar).text = value;
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kList);
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }

  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  YamlNode take_root() { return root_.empty() ? YamlNode() : std::move(root_.front()); }

 private:
  YamlNode& add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    if (anchor != 0) {
      throw Refusal(mark, "anchors (&name) are not supported; write the value out where it is used");
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refusal(mark, "tags (!name) are not supported; remove the tag");
    }
    if (++nodes_ > kMaxNodes) {
      throw Refusal(mark, "the file has more than " + std::to_string(kMaxNodes) + " values; remove some");
    }
    std::vector<YamlNode>* place = &root_;
    if (!open_.empty()) {
      YamlNode& parent = *open_.back();
      const bool is_key = parent.kind == YamlNode::Kind::kMap && parent.keys.size() == parent.items.size();
      if (is_key && kind != YamlNode::Kind::kScalar) {
        throw Refusal(mark, "a key is not text; write 'name: value'");
      }
      place = is_key ? &parent.keys : &parent.items;
    }
    YamlNode& node = place->emplace_back();
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    if (open_.size() == kMaxDepth) {
      throw Refusal(mark,
                    "more than " + std::to_string(kMaxDepth) + " levels of nesting; no option needs so many");
    }
    // Stays valid while it is open: only the innermost open node's vectors grow.
    open_.push_back(&add(mark, tag, anchor, kind));
  }

  void close() { open_.pop_back(); }

  std::vector<YamlNode> root_;
  std::vector<YamlNode*> open_;
  size_t nodes_ = 0;
};

Status check_bytes(std::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return {Code::kInvalidArgument,
            at(1, 1, "more than 1MiB; a configuration is smaller, is this the right file?")};
  }
  if (const auto bad = find_bad_byte(text)) {
    const std::string_view before = text.substr(0, *bad);
    const auto line = static_cast<int>(std::ranges::count(before, '\n')) + 1;
    const auto column = static_cast<int>(*bad - (before.rfind('\n') + 1)) + 1;
    return {Code::kInvalidArgument, at(line, column,
                                       "the byte " + in_quotes(text.substr(*bad, 1)) +
                                           " is a control character or not UTF-8; save the file as UTF-8")};
  }
  return ok_status();
}

// yaml-cpp's own words for a tab in front of a key or for an unquoted pattern do not lead to the cause.
std::string explain(std::string_view text, const YAML::Exception& error) {
  int line = 1;
  for (size_t begin = 0; begin < text.size() && line <= error.mark.line + 1; ++line) {
    const std::string_view indent = text.substr(begin, text.find_first_not_of(" \t", begin) - begin);
    if (const size_t tab = indent.find('\t'); tab != std::string_view::npos) {
      return at(line, static_cast<int>(tab) + 1, "YAML syntax: a tab in the indentation; write spaces");
    }
    begin = std::min(text.find('\n', begin), text.size() - 1) + 1;
  }
  const bool star =
      error.msg.find("anchor") != std::string::npos || error.msg.find("alias") != std::string::npos;
  return at(error.mark.line + 1, error.mark.column + 1,
            star ? std::string(kStar) : "YAML syntax: " + error.msg + "; correct this line or the one above");
}

}  // namespace

Result<YamlNode> parse_yaml(std::string_view text) {
  GRADWIRE_RETURN_IF_ERROR(check_bytes(text));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) {
      return YamlNode();
    }
    TreeBuilder second;
    if (parser.HandleNextDocument(second)) {
      const YamlNode root = second.take_root();
      return Status(Code::kInvalidArgument,
                    at(root.line, root.column, "a second document (after '---'); keep one document"));
    }
    return builder.take_root();
  } catch (const YAML::Exception& error) {
    return Status(Code::kInvalidArgument, explain(text, error));
  } catch (const Refusal& refusal) {
    return Status(Code::kInvalidArgument, refusal.message);
  } catch (const std::exception& error) {
    return Status(Code::kInternal, at(1, 1, std::string("the YAML parser failed: ") + error.what()));
  }
}

}  // namespace gradwire::config
