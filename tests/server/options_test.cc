#include "server/options.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/option_table.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<CommandLine> Parse(const std::vector<std::string>& arguments,
                                  const Environment& environment = {}) {
  std::vector<const char*> argv = {"attnd"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return ParseOptions(static_cast<int>(argv.size()), argv.data(),
                      [&environment](const std::string& name) -> const char* {
                        const auto found = environment.find(name);
                        return found == environment.end() ? nullptr : found->second.c_str();
                      });
}

// The message of a refusal; fails the test where there is none, or more than one line.
std::string Refusal(const std::vector<std::string>& arguments,
                    const Environment& environment = {}) {
  const absl::StatusOr<CommandLine> result = Parse(arguments, environment);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  std::string message(result.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/attnd_options_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& contents) {
    const std::string path = directory_ + "/attnd.flags";
    std::ofstream(path) << contents;
    return path;
  }

  std::string directory_;
};

TEST_F(OptionsTest, DefaultsAreThoseOfTheStruct) {
  const absl::StatusOr<CommandLine> result = Parse({});
  ASSERT_TRUE(result.ok()) << result.status();
  const Options expected;
  EXPECT_EQ(result->options.listen, expected.listen);
  EXPECT_EQ(result->options.max_message_bytes, 8 << 20);
  EXPECT_EQ(result->options.max_time_to_live, absl::Hours(168));
  EXPECT_TRUE(result->options.reflection);
  EXPECT_TRUE(result->text.empty());
}

TEST_F(OptionsTest, AutomaticValuesAreResolved) {
  const absl::StatusOr<CommandLine> result = Parse({});
  ASSERT_TRUE(result.ok());
  EXPECT_GE(result->options.workers, 1);
  EXPECT_GT(result->options.max_state_bytes, 0);
  const absl::StatusOr<CommandLine> given = Parse({"--workers=3", "--max_state_bytes=5MiB"});
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->options.workers, 3);
  EXPECT_EQ(given->options.max_state_bytes, 5 << 20);
}

TEST_F(OptionsTest, ReadsEveryFormOfAnOption) {
  const absl::StatusOr<CommandLine> result =
      Parse({"--max_sessions=7", "--max_layers", "9", "-max_heads=11", "--noreflection",
             "--max_stream_bytes=1MiB", "--drain_deadline=1m30s", "--log_format=json",
             "--log_level", "warning", "--listen=[::1]:0", "--http_listen="});
  ASSERT_TRUE(result.ok()) << result.status();
  const Options& options = result->options;
  EXPECT_EQ(options.max_sessions, 7);
  EXPECT_EQ(options.max_layers, 9);
  EXPECT_EQ(options.max_heads, 11);
  EXPECT_FALSE(options.reflection);
  EXPECT_EQ(options.max_stream_bytes, 1 << 20);
  EXPECT_EQ(options.drain_deadline, absl::Seconds(90));
  EXPECT_EQ(options.log_format, LogFormat::kJson);
  EXPECT_EQ(options.log_level, LogLevel::kWarning);
  EXPECT_EQ(options.listen, "[::1]:0");
  EXPECT_EQ(options.http_listen, "");
}

TEST_F(OptionsTest, ABareBooleanDoesNotSwallowTheNextArgument) {
  const absl::StatusOr<CommandLine> result = Parse({"--reflection", "--max_sessions=7"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->options.reflection);
  EXPECT_EQ(result->options.max_sessions, 7);
}

TEST_F(OptionsTest, CommandLineGoesBeforeEnvironmentBeforeFile) {
  const std::string path = File(
      "# limits\n"
      "\n"
      "  --max_sessions=1  \n"
      "// and\n"
      "--max_layers=1\n"
      "--max_heads=1\n");
  const Environment environment = {{"ATTND_MAX_SESSIONS", "2"}, {"ATTND_MAX_LAYERS", "2"}};
  const absl::StatusOr<CommandLine> result =
      Parse({"--max_sessions=3", "--flagfile=" + path}, environment);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->options.max_sessions, 3);
  EXPECT_EQ(result->options.max_layers, 2);
  EXPECT_EQ(result->options.max_heads, 1);
  EXPECT_EQ(result->options.max_head_dim, Options{}.max_head_dim);
}

TEST_F(OptionsTest, TheEnvironmentCanNameTheFile) {
  const absl::StatusOr<CommandLine> result =
      Parse({}, {{"ATTND_FLAGFILE", File("--max_sessions=5\n")}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->options.max_sessions, 5);
}

TEST_F(OptionsTest, TheLastOfEqualSourcesDecides) {
  const absl::StatusOr<CommandLine> result = Parse({"--max_sessions=1", "--max_sessions=2"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->options.max_sessions, 2);
}

TEST_F(OptionsTest, ACallDoesNotInheritFromTheOneBefore) {
  ASSERT_TRUE(Parse({"--max_sessions=1"}).ok());
  const absl::StatusOr<CommandLine> result = Parse({});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->options.max_sessions, Options{}.max_sessions);
}

// Kubernetes injects ATTND_PORT and its kin into the pods of a service named attnd.
TEST_F(OptionsTest, OtherVariablesOfThePrefixAreIgnored) {
  EXPECT_TRUE(Parse({}, {{"ATTND_PORT", "tcp://10.0.0.1:50051"}}).ok());
}

TEST_F(OptionsTest, NamesOptionValueAndLimit) {
  const struct {
    const char* argument;
    const char* message;
  } cases[] = {
      {"--max_sessions=-1", "--max_sessions is -1; it must be at least 1"},
      {"--max_sessions=many", "--max_sessions is \"many\"; it must be a whole number"},
      {"--max_sessions=", "--max_sessions is \"\"; it must be a whole number"},
      {"--max_sessions=99999999999999999999",
       "--max_sessions is \"99999999999999999999\"; it must be a whole number"},
      {"--max_sessions", "--max_sessions needs a value"},
      {"--workers=2000", "--workers is 2000; it must be from 0 to 1024"},
      {"--max_layers=0", "--max_layers is 0; it must be from 1 to 65536"},
      {"--max_message_bytes=65MiB", "--max_message_bytes is 65MiB; it must be from 64KiB to 64MiB"},
      {"--max_message_bytes=8M", "--max_message_bytes is \"8M\"; it must be a size such as 8MiB"},
      {"--max_response_bytes=1", "--max_response_bytes is 1; it must be from 64KiB to 64MiB"},
      {"--max_state_bytes=-1KiB", "--max_state_bytes is -1KiB; it must be at least 0"},
      {"--max_inflight_bytes=15MiB",
       "--max_inflight_bytes is 15MiB; it must be at least --max_message_bytes plus "
       "--max_response_bytes, which is 16MiB"},
      {"--drain_deadline=20",
       "--drain_deadline is \"20\"; it must be a duration such as 30s or 1h30m"},
      {"--drain_deadline=-1s", "--drain_deadline is -1s; it must be from 0 to 87600h"},
      {"--max_time_to_live=inf", "--max_time_to_live is inf; it must be from 1s to 87600h"},
      {"--default_time_to_live=169h",
       "--default_time_to_live is 169h; it must be at most --max_time_to_live, which is 168h"},
      {"--isa=sse", "--isa is \"sse\"; it must be one of native, avx2, avx512"},
      {"--log_format=xml", "--log_format is \"xml\"; it must be text or json"},
      {"--log_level=loud", "--log_level is \"loud\"; it must be debug, info, warning or error"},
      {"--reflection=maybe", "--reflection is \"maybe\"; it must be true or false"},
      {"--listen=", "--listen is \"\"; it must be HOST:PORT, such as 127.0.0.1:50051"},
      {"--listen=localhost",
       "--listen is \"localhost\"; it must be HOST:PORT, such as 127.0.0.1:50051"},
      {"--listen=localhost:70000",
       "--listen is \"localhost:70000\"; its port must be a number from 0 to 65535"},
      {"--listen=::1:80",
       "--listen is \"::1:80\"; its host must be a name, an IPv4 address or an IPv6 address in "
       "brackets"},
      {"--http_listen=a b:80",
       "--http_listen is \"a b:80\"; its host must be a name, an IPv4 address or an IPv6 address "
       "in "
       "brackets"},
      // The HTTP library would read these as further ports and as TLS.
      {"--http_listen=127.0.0.1:80,81",
       "--http_listen is \"127.0.0.1:80,81\"; its port must be a number from 0 to 65535"},
      {"--http_listen=127.0.0.1:443s",
       "--http_listen is \"127.0.0.1:443s\"; its port must be a number from 0 to 65535"},
      {"--flagfile=/nowhere/attnd.flags",
       "--flagfile is \"/nowhere/attnd.flags\"; the file cannot be read"},
      {"--max_session=1", "unknown option --max_session; attnd --help lists all"},
      {"--nomax_sessions", "unknown option --nomax_sessions; attnd --help lists all"},
      {"--a\nb=1", "unknown option --a\\nb; attnd --help lists all"},
      {"serve", "unexpected argument \"serve\"; options are written --name=value"},
      {"--", "unexpected argument \"--\"; options are written --name=value"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Refusal({c.argument}), c.message);
  }
}

TEST_F(OptionsTest, SaysWhereABadValueCameFrom) {
  EXPECT_EQ(Refusal({}, {{"ATTND_MAX_SESSIONS", "-1"}}),
            "--max_sessions (from ATTND_MAX_SESSIONS) is -1; it must be at least 1");
  EXPECT_EQ(Refusal({}, {{"ATTND_MAX_SESSIONS", "x\ny"}}),
            "--max_sessions (from ATTND_MAX_SESSIONS) is \"x\\ny\"; it must be a whole number");
  const std::string path = File("\n--max_sessions=-1\n");
  EXPECT_EQ(Refusal({"--flagfile=" + path}),
            "--max_sessions (at " + path + ":2) is -1; it must be at least 1");
}

TEST_F(OptionsTest, RefusesWhatAFlagFileMayNotHold) {
  std::string path = File("--bogus=1\n");
  EXPECT_EQ(Refusal({"--flagfile", path}),
            "unknown option --bogus (at " + path + ":1); attnd --help lists all");
  path = File("max_sessions=1\n");
  EXPECT_EQ(Refusal({"--flagfile", path}), "unexpected argument \"max_sessions=1\" (at " + path +
                                               ":1); options are written --name=value");
  path = File("--flagfile=" + directory_ + "/attnd.flags\n");
  EXPECT_EQ(Refusal({"--flagfile", path}),
            "--flagfile (at " + path + ":1) is refused; a flag file cannot name another");
  EXPECT_THAT(Refusal({"--flagfile", directory_}), HasSubstr("the file cannot be read"));
}

TEST_F(OptionsTest, HelpNamesEveryOptionOnceWithItsDefault) {
  const absl::StatusOr<CommandLine> result = Parse({"--max_sessions=bad", "--help"});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_GE(OptionTable().size(), 30U);
  for (const OptionRow& row : OptionTable()) {
    const std::string line = "\n  --" + row.name + "=" + row.default_value + "\n";
    const std::size_t at = result->text.find(line);
    ASSERT_NE(at, std::string::npos) << row.name;
    EXPECT_EQ(result->text.find("\n  --" + row.name + "=", at + 1), std::string::npos) << row.name;
    EXPECT_FALSE(row.help.empty()) << row.name;
    EXPECT_THAT(HelpMarkdown(), HasSubstr("| `--" + row.name + "` |"));
  }
  EXPECT_THAT(result->text, HasSubstr("--flagfile"));
  EXPECT_THAT(result->text, Not(HasSubstr("\t")));
}

TEST_F(OptionsTest, HelpAndVersionGoBeforeErrors) {
  EXPECT_EQ(Parse({"-h"})->text, HelpText());
  EXPECT_EQ(Parse({"--help=markdown", "--bogus"})->text, HelpMarkdown());
  EXPECT_THAT(Parse({"--version"})->text, StartsWith("attnd "));
}

// What the help prints as a default must be readable as a value.
TEST_F(OptionsTest, EveryDefaultParsesAndIsAccepted) {
  for (const OptionRow& row : OptionTable()) {
    EXPECT_TRUE(Parse({"--" + row.name + "=" + row.default_value}).ok()) << row.name;
  }
}

}  // namespace
}  // namespace attnd::server
