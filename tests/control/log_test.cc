// Log lines: one line each whatever is in them, not too many of a kind, and nobody waits for a reader.
#include "daemon/control/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "daemon/control/log_limiter.h"
#include "daemon/control/log_writer.h"

namespace gradwire::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

std::string value(const std::string& text) {
  return format_event("e", {{"v", text}}).substr(std::string("event=e v=").size());
}

TEST(LogLines, QuoteWhatIsNotPlain) {
  EXPECT_EQ(value("plain-1.5/x:y"), "plain-1.5/x:y");
  EXPECT_EQ(value(""), "\"\"");
  EXPECT_EQ(value("two words"), "\"two words\"");
  EXPECT_EQ(value("a=b"), "\"a=b\"");
  EXPECT_EQ(value("\" event=y"), "\"\\\" event=y\"");
  EXPECT_EQ(value("\\"), "\"\\\\\"");
  EXPECT_EQ(value("gr\u00fcn"), "\"gr\u00fcn\"");
}

TEST(LogLines, HoldNothingThatATerminalOrAReaderWouldObey) {
  EXPECT_EQ(value("a\nb\rc\td"), "\"a\\nb\\x0dc\\x09d\"");
  EXPECT_EQ(value("\x1b[31m"), "\"\\x1b[31m\"");
  EXPECT_EQ(value("\x7f"), "\"\\x7f\"");
  EXPECT_EQ(value(std::string("a\0b", 3)), "\"a\\x00b\"");
  EXPECT_EQ(value("\u0085"), "\"\\xc2\\x85\"");       // next line
  EXPECT_EQ(value("\u2028"), "\"\\xe2\\x80\\xa8\"");  // line separator
  EXPECT_EQ(value("\u202e"), "\"\\xe2\\x80\\xae\"");  // right to left
}

TEST(LogLines, HoldNoBytesThatAreNotUtf8) {
  EXPECT_EQ(value("\xff"), "\"\\xff\"");
  EXPECT_EQ(value("a\xc3"), "\"a\\xc3\"");                  // cut off
  EXPECT_EQ(value("\xc0\xaf"), "\"\\xc0\\xaf\"");           // too long for what it says
  EXPECT_EQ(value("\xed\xa0\x80"), "\"\\xed\\xa0\\x80\"");  // half of a surrogate pair
  EXPECT_EQ(value("\xf4\x90\x80\x80"), "\"\\xf4\\x90\\x80\\x80\"");
  EXPECT_EQ(value("\xf0\x9f\x99\x82"), "\"\xf0\x9f\x99\x82\"");
}

TEST(LogLines, AreCutWhereTheyNeverEnd) {
  const std::string text = value(std::string(1 << 20, 'x'));
  EXPECT_LT(text.size(), 3000u);
  EXPECT_THAT(text, ::testing::EndsWith("...\""));
}

TEST(LogLines, BesideOtherTextHoldAQuestionMarkInstead) {
  EXPECT_EQ(one_line("gr\u00fcn \"=\\", 100), "gr\u00fcn \"=\\");
  EXPECT_EQ(one_line("a\nb\x1b[31m\x7f", 100), "a?b?[31m?");
  EXPECT_EQ(one_line("a\u2028b\u0085", 100), "a???b??");
  EXPECT_EQ(one_line("\xff", 100), "?");
  EXPECT_EQ(one_line("", 100), "");
  EXPECT_EQ(one_line("gr\u00fcn", 3), "gr?");  // cut in the middle of a character
}

TEST(LogLimits, LetAFewThroughAndCountTheRest) {
  LogLimiter limiter;
  for (uint32_t i = 0; i < LogLimiter::kPerKey; ++i) {
    EXPECT_EQ(limiter.admit("e", "k", seconds(i)), 0u);
  }
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(limiter.admit("e", "k", seconds(30)), std::nullopt);
  }
  EXPECT_EQ(limiter.admit("e", "other", seconds(30)), 0u);
  EXPECT_EQ(limiter.admit("f", "k", seconds(30)), 0u);
  EXPECT_EQ(limiter.admit("e", "k", seconds(61)), 7u);  // says how many it stands for
  EXPECT_EQ(limiter.admit("e", "k", seconds(62)), 0u);
}

TEST(LogLimits, CountWhatNobodyRepeatsToo) {
  LogLimiter limiter;
  for (int i = 0; i < 9; ++i) {
    limiter.admit("e", "k", seconds(1));
  }
  EXPECT_TRUE(limiter.take_expired(seconds(30)).empty());
  const auto expired = limiter.take_expired(seconds(61));
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].event, "e");
  EXPECT_EQ(expired[0].key, "k");
  EXPECT_EQ(expired[0].count, 4u);
  EXPECT_TRUE(limiter.take_expired(seconds(200)).empty());
}

TEST(LogLimits, HoldAgainstEverNewKeys) {
  LogLimiter limiter;
  uint32_t written = 0;
  for (int i = 0; i < 100'000; ++i) {
    written += limiter.admit("e", "k" + std::to_string(i), seconds(1)).has_value() ? 1 : 0;
  }
  EXPECT_EQ(written, LogLimiter::kPerEvent);
  EXPECT_EQ(limiter.admit("other", "k", seconds(1)), 0u);
  uint64_t counted = 0;
  for (const auto& each : limiter.take_expired(seconds(100))) {
    counted += each.count;
  }
  EXPECT_EQ(counted, 100'000u - written);
}

class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    fcntl(ends_[1], F_SETPIPE_SZ, 4096);
  }
  ~Pipe() { close(ends_[0]); }  // the writer's thread has the other end for ever
  int in() const { return ends_[1]; }
  std::string read_until(const std::string& end) const {
    std::string text;
    char buffer[4096];
    ssize_t got;
    while (text.find(end) == std::string::npos && (got = ::read(ends_[0], buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int ends_[2];
};

std::string dropped(uint64_t count) {
  return "dropped " + std::to_string(count) + "\n";
}

TEST(LogWriters, WriteInOrder) {
  const Pipe pipe;
  LogWriter& writer = LogWriter::start(pipe.in(), dropped);
  for (int i = 0; i < 100; ++i) {
    writer.push("line " + std::to_string(i) + "\n");
  }
  EXPECT_THAT(pipe.read_until("line 99\n"), StartsWith("line 0\nline 1\n"));
  EXPECT_TRUE(writer.flush(seconds(10)));
}

TEST(LogWriters, NeverWaitForAReaderAndSayWhatIsMissing) {
  const Pipe pipe;
  LogWriter& writer = LogWriter::start(pipe.in(), dropped);
  const std::string line(1000, 'x');
  for (int i = 0; i < 5000; ++i) {
    writer.push(line + std::to_string(i) + "\n");
  }
  EXPECT_FALSE(writer.flush(milliseconds(50)));
  const std::string text = pipe.read_until("x4999\n");
  EXPECT_TRUE(writer.flush(seconds(10)));
  size_t lines = 0;
  uint64_t missing = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    if (text.compare(at, 8, "dropped ") == 0) {
      missing += std::stoul(text.substr(at + 8));
    } else {
      ++lines;
    }
  }
  EXPECT_GT(missing, 0u);
  EXPECT_EQ(lines + missing, 5000u);
}

TEST(LogWriters, GoOnWhereTheReaderIsGone) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  LogWriter& writer = LogWriter::start(ends[1], dropped);
  close(ends[0]);
  writer.push("nobody hears this\n");
  EXPECT_TRUE(writer.flush(seconds(10)));
}

}  // namespace
}  // namespace gradwire::control
