#include "server/logging.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/failure_log.h"
#include "server/log_text.h"
#include "tests/server/fake_clock.h"

namespace attnd::server {
namespace {

using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// The lines that `body` logs.
std::vector<std::string> Lines(LogFormat format, LogLevel level,
                               const std::function<void()>& body) {
  std::vector<std::string> lines;
  StartLogging({.format = format, .level = level, .sink = [&lines](std::string_view line) {
                  lines.emplace_back(line);
                }});
  body();
  StopLogging();  // after which all is written
  return lines;
}

// Parsed by a JSON reader that shares nothing with the writer.
google::protobuf::Struct Json(const std::string& line) {
  google::protobuf::Struct parsed;
  const auto status = google::protobuf::util::JsonStringToMessage(line, &parsed);
  EXPECT_TRUE(status.ok()) << status.ToString() << " in " << line;
  return parsed;
}

std::string Escaped(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

const std::vector<std::string>& HostileTexts() {
  static const auto* const texts = new std::vector<std::string>{
      "a\"b\\c",
      "two\nlines\r\n{\"level\":\"error\"}",
      std::string("nul\0byte", 8),
      "\x1b[31mred\x1b[0m\x7f\b",
      "half a character \xC3",
      "\xFF\xFE\x80",
      "\xC0\xAF overlong",
      "\xED\xA0\x80 surrogate",
      "\xF4\x90\x80\x80 beyond",
      "\xE2\x80\xAE right to left, \xE2\x80\xA8 separator, \xC2\x85 next line",
      "\xF0\x9F\x98\x80 \xC3\xA9",
      "",
      std::string(100'000, 'x'),
      std::string(100'000, '\x01'),
  };
  return *texts;
}

TEST(LoggingTest, TextLine) {
  const auto lines = Lines(LogFormat::kText, LogLevel::kInfo, [] {
    Log(LogLevel::kInfo, "session created",
        {{"session", "doc-17"},
         {"layers", 12},
         {"bytes", std::uint64_t{1} << 63},
         {"ratio", 0.5},
         {"fresh", true},
         {"label", "two words"}});
  });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
                                     "\\.[0-9]{6}Z info .*"));
  EXPECT_THAT(lines[0], EndsWith("Z info session created session=doc-17 layers=12 "
                                 "bytes=9223372036854775808 ratio=0.5 fresh=true "
                                 "label=\"two words\""));
}

TEST(LoggingTest, JsonLine) {
  const auto lines = Lines(LogFormat::kJson, LogLevel::kInfo, [] {
    Log(LogLevel::kWarning, "queue full",
        {{"session", "doc-17"},
         {"depth", 4096},
         {"nan", std::numeric_limits<double>::quiet_NaN()},
         {"inf", std::numeric_limits<double>::infinity()},
         {"ratio", 0.25},
         {"fresh", false}});
  });
  ASSERT_EQ(lines.size(), 1U);
  const auto json = Json(lines[0]);
  EXPECT_EQ(json.fields().at("level").string_value(), "warning");
  EXPECT_EQ(json.fields().at("event").string_value(), "queue full");
  EXPECT_EQ(json.fields().at("session").string_value(), "doc-17");
  EXPECT_EQ(json.fields().at("depth").number_value(), 4096);
  EXPECT_EQ(json.fields().at("nan").string_value(), "nan");
  EXPECT_EQ(json.fields().at("inf").string_value(), "inf");
  EXPECT_EQ(json.fields().at("ratio").number_value(), 0.25);
  EXPECT_FALSE(json.fields().at("fresh").bool_value());
  EXPECT_THAT(json.fields().at("time").string_value(), EndsWith("Z"));
}

TEST(LoggingTest, HostileTextStaysOneValidJsonLine) {
  for (const std::string& text : HostileTexts()) {
    const auto lines = Lines(LogFormat::kJson, LogLevel::kInfo, [&] {
      Log(LogLevel::kInfo, "session", {{"session", text}});
    });
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0].find_first_of("\n\r\x1b"), std::string::npos);
    EXPECT_LT(lines[0].size(), 1300U);
    const auto json = Json(lines[0]);
    EXPECT_EQ(json.fields().size(), 4);
    EXPECT_EQ(json.fields().at("level").string_value(), "info");
  }
}

TEST(LoggingTest, HostileTextStaysOneTextLine) {
  for (const std::string& text : HostileTexts()) {
    const auto lines = Lines(LogFormat::kText, LogLevel::kInfo, [&] {
      Log(LogLevel::kInfo, "session", {{"session", text}, {"last", 1}});
    });
    ASSERT_EQ(lines.size(), 1U);
    for (const char c : lines[0]) {
      EXPECT_FALSE((c >= 0 && c < ' ') || c == '\x7f') << lines[0];
    }
    EXPECT_THAT(lines[0], EndsWith(" last=1"));
    EXPECT_LT(lines[0].size(), 1300U);
  }
}

TEST(LoggingTest, ATextValueCannotPretendToBeAnotherField) {
  const auto lines = Lines(LogFormat::kText, LogLevel::kInfo, [] {
    Log(LogLevel::kInfo, "session", {{"session", "a level=error"}, {"other", "b=c"}});
  });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], EndsWith(" session=\"a level=error\" other=\"b=c\""));
}

TEST(LoggingTest, EscapesExactly) {
  EXPECT_EQ(Escaped("a\"\\\n\x7f"), R"("a\"\\\u000a\u007f")");
  EXPECT_EQ(Escaped("\xC3\xA9\xF0\x9F\x98\x80"), "\"\xC3\xA9\xF0\x9F\x98\x80\"");
  EXPECT_EQ(Escaped("x\xC3"), "\"x\xEF\xBF\xBD\"");
  EXPECT_EQ(Escaped("\xE2\x82y"), "\"\xEF\xBF\xBD\xEF\xBF\xBDy\"");
  EXPECT_EQ(Escaped("\xE2\x80\xAE"), R"("\u202e")");
  EXPECT_EQ(Escaped("\xC2\x85"), R"("\u0085")");
  EXPECT_EQ(Escaped(std::string(2000, 'x')), "\"" + std::string(1024, 'x') + "...\"");
  EXPECT_EQ(Escaped(std::string(1024, 'x')), "\"" + std::string(1024, 'x') + "\"");
}

TEST(LoggingTest, RandomBytesAreValidJson) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> byte(0, 255);
  std::uniform_int_distribution<int> length(0, 40);
  for (int round = 0; round < 2000; ++round) {
    std::string text(static_cast<std::size_t>(length(random)), '\0');
    for (char& c : text) {
      c = static_cast<char>(byte(random));
    }
    Json("{\"x\":" + Escaped(text) + "}");
  }
}

TEST(LoggingTest, LinesBelowTheLevelAreDropped) {
  const auto lines = Lines(LogFormat::kText, LogLevel::kWarning, [] {
    EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
    EXPECT_TRUE(LogEnabled(LogLevel::kError));
    Log(LogLevel::kDebug, "a");
    Log(LogLevel::kInfo, "b");
    Log(LogLevel::kWarning, "c");
    Log(LogLevel::kError, "d");
  });
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], EndsWith(" warning c"));
  EXPECT_THAT(lines[1], EndsWith(" error d"));
}

TEST(LoggingTest, NothingIsLoggedBeforeStartAndAfterStop) {
  EXPECT_FALSE(LogEnabled(LogLevel::kError));
  Log(LogLevel::kError, "lost");
  EXPECT_THAT(Lines(LogFormat::kText, LogLevel::kInfo, [] {}), IsEmpty());
  Log(LogLevel::kError, "lost");
}

TEST(LoggingTest, ThreadsDoNotTearLines) {
  const auto lines = Lines(LogFormat::kJson, LogLevel::kInfo, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 250; ++i) {
          Log(LogLevel::kInfo, "line", {{"thread", t}, {"i", i}});
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
  EXPECT_EQ(lines.size(), 1000U);
  for (const std::string& line : lines) {
    Json(line);
  }
}

TEST(LoggingTest, AStalledReaderDoesNotStallTheWriter) {
  std::mutex stall;
  std::size_t written = 0;
  stall.lock();
  StartLogging(
      {.format = LogFormat::kText, .level = LogLevel::kInfo, .sink = [&](std::string_view) {
         const std::lock_guard<std::mutex> lock(stall);
         ++written;
       }});
  for (int i = 0; i < 20'000; ++i) {
    Log(LogLevel::kInfo, "line");  // would never return if the queue's end blocked
  }
  stall.unlock();
  StopLogging();
  EXPECT_GT(written, 1000U);
  EXPECT_LE(written, 8200U);
}

TEST(FailureLogTest, WritesAtMostTenLinesASecondOfAKind) {
  FakeClock clock;
  const auto lines = Lines(LogFormat::kText, LogLevel::kInfo, [&clock] {
    FailureLog log(clock);
    for (int i = 0; i < 1000; ++i) {
      log.Write(LogLevel::kWarning, "bad request", {{"i", i}});
    }
    log.Write(LogLevel::kWarning, "other", {});
    clock.Advance(absl::Milliseconds(999));
    log.Write(LogLevel::kWarning, "bad request", {{"i", 1000}});
    clock.Advance(absl::Milliseconds(1));
    log.Write(LogLevel::kWarning, "bad request", {{"i", 1001}});
  });
  ASSERT_EQ(lines.size(), 13U);
  EXPECT_THAT(lines[9], EndsWith("bad request i=9"));
  EXPECT_THAT(lines[10], EndsWith(" other"));
  EXPECT_THAT(lines[11], EndsWith("bad request suppressed=991"));
  EXPECT_THAT(lines[12], EndsWith("bad request i=1001"));
}

TEST(FailureLogTest, SaysAtTheEndHowManyWereSuppressed) {
  FakeClock clock;
  const auto lines = Lines(LogFormat::kText, LogLevel::kInfo, [&clock] {
    FailureLog log(clock);
    for (int i = 0; i < 12; ++i) {
      log.Write(LogLevel::kWarning, "bad request", {{"i", i}});
    }
  });
  ASSERT_EQ(lines.size(), 11U);
  EXPECT_THAT(lines[10], EndsWith("bad request suppressed=2"));
}

}  // namespace
}  // namespace attnd::server
