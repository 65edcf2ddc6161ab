#include "config/psk.h"

#include "tests/config/support.h"

namespace gradwire::config {
namespace {

class Psk : public ConfigTest {
 protected:
  std::string text(const std::string& content, mode_t mode = 0600) {
    const Result<std::vector<std::byte>> key = load_psk(write(content, "key", mode));
    code_ = key.status().code();
    message_ = key.status().message();
    return key.ok() ? std::string(reinterpret_cast<const char*>(key.value().data()), key.value().size()) : "";
  }
  Code code_ = Code::kOk;
  std::string message_;
};

TEST_F(Psk, IsHexOrText) {
  EXPECT_EQ(text("6162636465666768696A6b6c6d6e6f70\n"), "abcdefghijklmnop");
  EXPECT_EQ(text("  sixteen bytes ok \r\n"), "sixteen bytes ok");
  EXPECT_EQ(text(std::string(31, 'a')), std::string(31, 'a')) << "too short for hex: text";
  EXPECT_EQ(text(std::string(512, 'a')), std::string(256, '\xAA'));
  EXPECT_EQ(text(std::string(256, 'x')), std::string(256, 'x'));
}

TEST_F(Psk, IsRefusedWhereItIsWeakOrOdd) {
  for (const std::string& bad : {std::string(), std::string("\n\n"), std::string("fifteen bytes !"),
                                 std::string(33, 'a'), std::string(257, 'x'), std::string(514, 'a'),
                                 std::string(5000, 'x'), std::string("line one and more\nline two"),
                                 std::string(16, '\xFF'), std::string("sixteen \0 bytes ok", 18)}) {
    EXPECT_EQ(text(bad), "");
    EXPECT_EQ(code_, Code::kInvalidArgument) << bad;
    EXPECT_TRUE(bad.size() < 9 || message_.find(bad.substr(0, 9)) == std::string::npos)
        << "the key is secret: " << message_;
  }
}

TEST_F(Psk, MustNotBeOpenToOthers) {
  for (const mode_t mode : {0604, 0602, 0601, 0644, 0777}) {
    EXPECT_EQ(text("sixteen bytes ok", mode), "");
    EXPECT_EQ(code_, Code::kPermissionDenied) << mode;
  }
  EXPECT_EQ(text("sixteen bytes ok", 0640), "sixteen bytes ok");
  EXPECT_EQ(text("sixteen bytes ok", 0400), "sixteen bytes ok");
}

TEST_F(Psk, MustBeARegularFile) {
  EXPECT_EQ(load_psk(path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(load_psk(testing::TempDir()).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(load_psk(path("fifo")).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::config
