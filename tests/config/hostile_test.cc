#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "config/yaml_tree.h"
#include "tests/config/support.h"

namespace gradwire::config {
namespace {

class Hostile : public ConfigTest {};

TEST_F(Hostile, MissingFilesAndDirectoriesAreNamed) {
  const Result<LoadedConfig> missing = load_config(path("none.yaml"), {});
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_EQ(
      missing.status().message(),
      path("none.yaml") + ": cannot be read (No such file or directory); check the path and its permissions");
  const std::string pipe = path("pipe.yaml");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(load_config(pipe, {}).status().message(), pipe + ": is not a regular file; name the YAML file");
  unlink(pipe.c_str());
  const Result<LoadedConfig> directory = load_config(testing::TempDir(), {});
  EXPECT_EQ(directory.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(directory.status().message(), testing::TempDir() + ": is a directory; name the YAML file in it");
}

TEST_F(Hostile, BytesThatAreNotTextAreNamedWithTheirPlace) {
  EXPECT_EQ(error("clocks:\n  x: \xFF\n"),
            "FILE:2:6: the byte '\\xff' is a control character or not UTF-8; save the file as UTF-8");
  EXPECT_EQ(error(std::string_view("a\0b", 3)),
            "FILE:1:2: the byte '\\x00' is a control character or not UTF-8; save the file as UTF-8");
  EXPECT_EQ(error("\xED\xA0\x80"),  // a surrogate
            "FILE:1:1: the byte '\\xed' is a control character or not UTF-8; save the file as UTF-8");
  EXPECT_EQ(error("node: {name: \"a\\0b\"}"),
            "FILE:1:14: node.name: 'a\\x00b' holds a control character or is not UTF-8; allowed 1 to 255 "
            "bytes of text; "
            "write for example worker-3");
  EXPECT_EQ(
      error("", {"node.name=\xFF"}),
      "command line: node.name: '\\xff' holds a control character or is not UTF-8; allowed 1 to 255 bytes of "
      "text; write for example worker-3");
  EXPECT_TRUE(load("node: {name: \"w\xC3\xB6rker-\xF0\x9F\x90\x8E\"}").ok());
}

TEST_F(Hostile, AnchorsAliasesTagsAndSecondDocumentsAreRefused) {
  EXPECT_EQ(error("a: &x [1]\nb: [*x, *x]\n"),
            "FILE:1:4: anchors (&name) are not supported; write the value out where it is used");
  const std::string star =
      "a value that starts with '*' is a YAML alias, which is not supported; put a pattern in quotes: "
      "\"*.bias\"";
  for (const char* pattern : {"*.bias", "*", "*x"}) {
    EXPECT_EQ(error("compression:\n  rules:\n    - match: " + std::string(pattern) + "\n").substr(0, 8),
              "FILE:3:1");
    EXPECT_TRUE(error("compression:\n  rules:\n    - match: " + std::string(pattern) + "\n").ends_with(star));
  }
  EXPECT_EQ(error("log: {level: !!binary aGk=}"),
            "FILE:1:14: tags (!name) are not supported; remove the tag");
  EXPECT_EQ(error("log: {level: info}\n---\nlog: {level: warn}\n"),
            "FILE:3:1: a second document (after '---'); keep one document");
  EXPECT_EQ(error("[a]: b\n"), "FILE:1:1: a key is not text; write 'name: value'");
  EXPECT_EQ(error("? \n: b\n"), "FILE:2:1: a key is not text; write 'name: value'");
}

TEST_F(Hostile, SyntaxErrorsHaveTheirPlace) {
  EXPECT_EQ(error("log: {level: info\nnode: x\n").substr(0, 22), "FILE:2:5: YAML syntax:");
  EXPECT_EQ(error("log:\n\tlevel: info\n"), "FILE:2:1: YAML syntax: a tab in the indentation; write spaces");
  EXPECT_EQ(error("log:\n  level: info\n  \tx: 1"),
            "FILE:3:3: YAML syntax: a tab in the indentation; write spaces");
  EXPECT_EQ(error("a: \"\\ud800\"").substr(0, 7), "FILE:1:");
}

TEST_F(Hostile, SizeNodesAndDepthAreLimited) {
  EXPECT_EQ(error(std::string(kMaxFileBytes + 1, '#')),
            "FILE:1:1: more than 1MiB; a configuration is smaller, is this the right file?");
  EXPECT_EQ(error(std::string(kMaxFileBytes, '#')), "");
  std::string wide = "[";
  for (size_t i = 0; i < kMaxNodes; ++i) {
    wide += "a,";
  }
  EXPECT_NE(error(wide + "]").find("more than 65536 values"), std::string::npos);
  EXPECT_NE(error(std::string(100000, '[')), "");
  EXPECT_EQ(error(std::string(20, '[') + std::string(20, ']')),
            "FILE:1:9: more than 8 levels of nesting; no option needs so many");
  EXPECT_NE(error(std::string(100000, '{')), "");
  std::string steps;
  for (int i = 0; i < 1000; ++i) {
    steps += "- ";
  }
  EXPECT_EQ(error(steps), "FILE:1:17: more than 8 levels of nesting; no option needs so many");
}

TEST_F(Hostile, AFloodOfErrorsIsCut) {
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += "key" + std::to_string(i) + ": 1\n";
  }
  const std::string message = error(text);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 100);
  EXPECT_TRUE(message.ends_with("\nmore errors are not shown"));
}

TEST_F(Hostile, LimitsOfListsHold) {
  std::string text = "compression:\n  rules:\n";
  for (size_t i = 0; i < kMaxPolicyRules; ++i) {
    text += "    - {match: layer" + std::to_string(i) + ", codec: l8}\n";
  }
  EXPECT_EQ(error(text), "");
  EXPECT_EQ(error(text + "    - {match: one}\n"),
            "FILE:3:5: compression.rules: has 1025 rules; allowed a list of at most 1024 rules");
  EXPECT_NE(error("compression: {rules: [{match: " + std::string(kMaxMatchBytes + 1, 'a') + "}]}"), "");
  EXPECT_EQ(error("compression: {rules: [{match: " + std::string(kMaxMatchBytes, 'a') + "}]}"), "");
}

}  // namespace
}  // namespace gradwire::config
