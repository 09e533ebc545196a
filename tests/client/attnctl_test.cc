// attnctl as a person meets it: the program itself, run against the fake server.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "client/attnctl/command_line.h"
#include "client/attnctl/session_flags.h"
#include "client/attnctl/text.h"
#include "client/feature_map.h"
#include "client/npy.h"
#include "tests/client/fake_error.h"
#include "tests/client/session_fixture.h"

namespace attnd::attnctl {
namespace {

using client::F32;
using client::TestTokens;

struct Output {
  int exit_status = -1;
  // Standard output, then standard error.
  std::string text;
};

Output RunShell(const std::string& command) {
  Output output;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.text.append(buffer, n);
  }
  output.exit_status = WEXITSTATUS(::pclose(pipe));
  return output;
}

class Attnctl : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("attnctl_test_" + std::to_string(::getpid()));
    std::filesystem::create_directory(directory_);
    const TestTokens data(0, 20);
    ASSERT_TRUE(client::WriteNpyFile(File("k.npy"), F32(data.keys, {20, client::kKeyDim})).ok());
    ASSERT_TRUE(
        client::WriteNpyFile(File("v.npy"), F32(data.values, {20, 1, client::kValueDim})).ok());
    ASSERT_TRUE(client::WriteNpyFile(File("q.npy"), data.query_tensor()).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return (directory_ / name).string(); }

  Output Run(const std::string& arguments) const {
    return RunShell("cd '" + directory_.string() + "' && '" ATTNCTL_PROGRAM "' --server=" +
                    server_.target() + " " + arguments + " 2>&1");
  }

  client::FakeServer server_;
  std::filesystem::path directory_;
};

TEST_F(Attnctl, TheLifeOfASession) {
  Output output =
      Run("create --key-dim 4 --value-dim 3 --id s --label team=a --ttl 90m --window 512");
  EXPECT_EQ(output.exit_status, 0);
  EXPECT_EQ(output.text, "s\n");
  EXPECT_EQ(Run("append s --keys k.npy --values v.npy").text, "20 tokens appended, position 20\n");
  EXPECT_EQ(Run("append s --keys k.npy --values v.npy --position 0").text,
            "20 tokens appended, position 20 (some were there already)\n");
  EXPECT_EQ(server_.PositionOf("s"), 20);

  EXPECT_EQ(Run("attend s --queries q.npy --out o.npy").text,
            "20 queries answered at position 20 -> o.npy\n");
  const auto outputs = client::ReadNpyFile(File("o.npy"));
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->array.shape, (std::vector<std::int64_t>{20, 1, client::kValueDim}));

  EXPECT_EQ(Run("step s --keys k.npy --values v.npy --queries q.npy --out o2.npy").text,
            "20 queries answered at position 40 -> o2.npy\n");
  EXPECT_NE(Run("get s").text.find("labels      team=a"), std::string::npos);
  EXPECT_NE(Run("get s").text.find("window of 512 tokens"), std::string::npos);
  EXPECT_NE(Run("get s --json").text.find("\"position\": \"0\""), std::string::npos);
  EXPECT_NE(Run("update s --label team=b").text.find("team=b"), std::string::npos);
  EXPECT_NE(Run("list").text.find("\ns  "), std::string::npos);
  EXPECT_EQ(Run("delete s").text, "deleted s\n");
  output = Run("get s");
  EXPECT_EQ(output.exit_status, 1);
  EXPECT_EQ(output.text,
            "attnctl get: session_id: 's' is unknown [UNKNOWN]; check the id (attnctl list) or "
            "create the session\n");
}

TEST_F(Attnctl, FlushMakesASessionDurable) {
  ASSERT_EQ(
      Run("create --key-dim 4 --value-dim 3 --layers 2 --durability checkpointed --id s").text,
      "s\n");
  ASSERT_EQ(Run("append s --keys k.npy --values v.npy --layer 1").exit_status, 0);
  Output output = Run("get s");
  EXPECT_NE(output.text.find("durability  checkpointed, durable up to position 0\n"),
            std::string::npos)
      << output.text;
  EXPECT_EQ(Run("flush s").text, "flushed s, durable up to position 0 (by layer: 0, 20)\n");
  output = Run("get s");
  EXPECT_NE(output.text.find("checkpointed, durable up to position 0 (by layer: 0, 20)\n"),
            std::string::npos)
      << output.text;
  EXPECT_NE(Run("get s --json").text.find("\"durableLayerPositions\""), std::string::npos);
  EXPECT_NE(Run("flush s --json").text.find("\"durablePosition\": \"20\""), std::string::npos);

  ASSERT_EQ(Run("create --key-dim 4 --value-dim 3 --id e").exit_status, 0);
  EXPECT_NE(Run("get e").text.find("durability  ephemeral\n"), std::string::npos);
  output = Run("flush e");
  EXPECT_EQ(output.exit_status, 1);
  EXPECT_NE(output.text.find("[UNSUPPORTED]"), std::string::npos) << output.text;
}

TEST_F(Attnctl, HealthIsAnExitStatus) {
  Output output = Run("health");
  EXPECT_EQ(output.exit_status, 0);
  EXPECT_EQ(output.text, "SERVING\n");
  EXPECT_NE(Run("health --json").text.find("\"status\": \"SERVING\""), std::string::npos);
  server_.SetServing(false);
  output = Run("health");
  EXPECT_EQ(output.exit_status, 1);
  EXPECT_EQ(output.text,
            "attnctl health: the server at " + server_.target() + " says NOT_SERVING\n");
  EXPECT_EQ(Run("health --json").exit_status, 1);
}

TEST_F(Attnctl, TopKIsPrintedByQuery) {
  ASSERT_EQ(Run("create --key-dim 4 --value-dim 3 --id s").exit_status, 0);
  ASSERT_EQ(Run("append s --keys k.npy --values v.npy").exit_status, 0);
  const Output output = Run("attend s --queries q.npy --out o.npy --top-k 2");
  EXPECT_NE(output.text.find("query 19:  0 (1.0000)  1 (1.0000)\n"), std::string::npos)
      << output.text;
}

TEST_F(Attnctl, EstimatesAreSummedUpAndTheirErrorsWritten) {
  ASSERT_EQ(Run("create --engine kde --target-error 0.02 --key-dim 4 --value-dim 3 --id s"
                " --mode certified --max-keys 500 --session-seed 7")
                .text,
            "s\n");
  EXPECT_NE(Run("get s").text.find("kde (certified, error 0.02, 500 keys)"), std::string::npos);
  const std::string summary =
      "  stated error    median 0.1, 95th percentile 0.1 (100 % calibrated)\n"
      "  target met      50.0 % of 20 rows\n";
  EXPECT_EQ(Run("step s --keys k.npy --values v.npy --queries q.npy --out o.npy"
                " --target-error 0.1 --estimates")
                .text,
            "20 queries answered at position 20 -> o.npy\n" + summary +
                "  keys evaluated  10 per row, at most 20\n"
                "  paths           exact 10, index 10\n");
  EXPECT_EQ(Run("attend s --queries q.npy --out o.npy --target-error 0.1 --max-keys 30"
                " --errors e.npy --query-position 0")
                .text,
            "20 queries answered at position 20 -> o.npy\n" + summary +
                "  keys evaluated  20 per row, at most 20\n"
                "  paths           exact 10, index 10\n");
  const auto errors = client::ReadNpyFile(File("e.npy"));
  ASSERT_TRUE(errors.ok()) << errors.status();
  EXPECT_EQ(errors->array.shape, (std::vector<std::int64_t>{20, 1}));
  const Output json = Run("attend s --queries q.npy --out o.npy --estimates --json");
  for (const char* part : {"\"estimates\":", "\"medianStatedError\": 0", "\"targetMet\": 0.5",
                           "\"calibrated\": 1", "\"meanKeysEvaluated\": 20", "\"exact\": 10"}) {
    EXPECT_NE(json.text.find(part), std::string::npos) << part << " in " << json.text;
  }
  EXPECT_EQ(Run("attend s --queries q.npy --out o.npy").text,
            "20 queries answered at position 20 -> o.npy\n");
}

TEST_F(Attnctl, AppendsWithAMask) {
  ASSERT_EQ(Run("create --key-dim 4 --value-dim 3 --id s").exit_status, 0);
  std::ofstream(File("m.npy"), std::ios::binary)
      << std::string("\x93NUMPY\x01\x00\x3c\x00", 10)
      << "{'descr': '|u1', 'fortran_order': False, 'shape': (20,), }\n " << std::string(20, '\0');
  const Output output = Run("append s --keys k.npy --values v.npy --mask m.npy --json");
  EXPECT_EQ(output.exit_status, 0) << output.text;
  EXPECT_NE(output.text.find("\"position\": 20"), std::string::npos) << output.text;
  EXPECT_EQ(Run("append s --keys k.npy --values v.npy --mask k.npy").exit_status, 1);
}

TEST_F(Attnctl, UploadsALearnedMapAndNamesItInASession) {
  // 20 features of keys of size 4, the same for queries.
  const Output put =
      Run("put-feature-map --activation relu --key-weights k.npy --query-weights k.npy");
  EXPECT_EQ(put.exit_status, 0) << put.text;
  ASSERT_EQ(put.text.size(), 65U) << put.text;
  const std::string sha256 = put.text.substr(0, 64);
  EXPECT_EQ(sha256, client::Sha256ToHex(server_.seen().map_header.sha256()));
  const v1::FeatureMapHeader header = server_.seen().map_header;
  EXPECT_EQ(header.activation(), v1::FeatureMapHeader::RELU);
  EXPECT_EQ(header.kv_heads(), 1);
  EXPECT_EQ(header.features(), 20);
  EXPECT_EQ(header.key_dim(), 4);
  EXPECT_FALSE(header.query_bias());
  EXPECT_NE(
      Run("put-feature-map --activation relu --key-weights k.npy --query-weights k.npy --json")
          .text.find("\"alreadyThere\": true"),
      std::string::npos);
  ASSERT_EQ(
      Run("create --id s --key-dim 4 --engine linear --feature-map learned --weights " + sha256)
          .text,
      "s\n");
  EXPECT_NE(Run("get s").text.find("linear (learned " + sha256.substr(0, 12) + ")"),
            std::string::npos)
      << Run("get s").text;
}

// As many numbers in another shape went up as a map that nobody had meant, and an empty file of
// biases as none.
TEST_F(Attnctl, AMapOfMixedUpShapesIsNotUploadedScrambled) {
  const std::vector<float> numbers(64, 0.5F);
  const auto write = [&](const char* name, const std::vector<std::int64_t>& shape) {
    std::size_t size = 1;
    for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
    const std::span<const float> array = std::span(numbers).first(size);
    ASSERT_TRUE(client::WriteNpyFile(File(name), F32(array, shape)).ok());
  };
  write("w.npy", {2, 8, 4});
  write("transposed.npy", {2, 4, 8});
  write("bias.npy", {2, 8});
  write("square_bias.npy", {4, 4});
  write("empty_bias.npy", {0, 8});
  const struct {
    const char* arguments;
    const char* says;
  } cases[] = {
      {"--key-weights w.npy --query-weights transposed.npy",
       "--query-weights: heads of (4, 8), expected (8, 4) as (m, d) of --key-weights"},
      {"--key-weights w.npy --query-weights w.npy --key-bias square_bias.npy",
       "--key-bias: shape (4, 4), expected (2, 8) as (heads, m) of the weights"},
      {"--key-weights w.npy --query-weights w.npy --query-bias square_bias.npy",
       "--query-bias: shape (4, 4), expected (2, 8) as (heads, m) of the weights"},
      {"--key-weights w.npy --query-weights w.npy --query-bias empty_bias.npy",
       "--query-bias: shape (0, 8), expected (2, 8) as (heads, m) of the weights"},
  };
  for (const auto& [arguments, says] : cases) {
    const Output output = Run(std::string("put-feature-map ") + arguments);
    EXPECT_EQ(output.exit_status, 1) << arguments << ": " << output.text;
    EXPECT_NE(output.text.find(says), std::string::npos) << arguments << ": " << output.text;
  }
  EXPECT_EQ(server_.seen().map_header.sha256(), "");
  const Output good =
      Run("put-feature-map --key-weights w.npy --query-weights w.npy --key-bias bias.npy "
          "--query-bias bias.npy");
  EXPECT_EQ(good.exit_status, 0) << good.text;
  EXPECT_TRUE(server_.seen().map_header.key_bias());
  EXPECT_TRUE(server_.seen().map_header.query_bias());
}

TEST_F(Attnctl, EveryErrorIsOneLineThatSaysWhatToDo) {
  ASSERT_EQ(Run("create --key-dim 4 --value-dim 3 --id s").exit_status, 0);
  const struct {
    const char* arguments;
    int exit_status;
    const char* says;
  } cases[] = {
      {"", 2, "see attnctl --help"},
      {"frobnicate", 2, "see attnctl --help"},
      {"create --engine quadratic", 2, "see attnctl create --help"},
      {"create", 1, "--key-dim is missing"},
      {"create --key-dim 4 --label x", 1, "'x' is not KEY=VALUE"},
      {"create --key-dim 4 --ttl soon", 1, "--ttl: 'soon' is not a positive duration"},
      {"append s --keys k.npy", 2, "--values is required"},
      {"append s --keys none.npy --values v.npy", 2, "none.npy"},
      {"append s --keys v.npy --values k.npy", 1, "expected [n >= 1, 1, 4]"},
      {"append s --keys k.npy --values v.npy --position 7", 1,
       "[WRONG_POSITION]; read the position"},
      {"attend s --queries q.npy --out /nonexistent/o.npy", 1, "cannot be written"},
      {"step s --keys k.npy --values v.npy --queries q.npy --out /nonexistent/o.npy", 1,
       "cannot be written"},
      {"get nobody --timeout never", 2, "'never' is not a positive duration"},
      {"update s", 1, "nothing to change"},
      {"create --key-dim 4 --durability forever", 2, "--durability"},
      {"flush", 2, "id is required"},
      {"flush nobody", 1, "[UNKNOWN]; check the id"},
      {"create --key-dim 4 --engine linear --feature-map learned --weights 12", 1,
       "--weights: '12' is not a SHA-256"},
      {"put-feature-map --key-weights k.npy", 2, "--query-weights is required"},
      {"put-feature-map --key-weights k.npy --query-weights v.npy", 1,
       "--query-weights: heads of (1, 3), expected (20, 4) as (m, d) of --key-weights"},
      {"put-feature-map --key-weights k.npy --query-weights k.npy --key-bias v.npy", 1,
       "--key-bias: shape (20, 1, 3), expected (heads, m) or (m), f32 or f16"},
      {"bench --duration 0", 1, "the test has no end"},
      {"bench --sessions 0", 1, "must be at least 1"},
      {"--server=127.0.0.1:1 info", 1, "check that the server runs"},
      {"--server=127.0.0.1:1 health", 1, "check that the server runs"},
  };
  for (const auto& [arguments, exit_status, says] : cases) {
    const Output output = Run(arguments);
    EXPECT_EQ(output.exit_status, exit_status) << arguments << ": " << output.text;
    EXPECT_NE(output.text.find(says), std::string::npos) << arguments << ": " << output.text;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
  }
  // The step was refused before its tokens were sent.
  EXPECT_EQ(server_.PositionOf("s"), 0);
}

TEST_F(Attnctl, BenchMeasuresEveryCallAndLeavesNothingBehind) {
  for (const char* call : {"attend", "append", "step"}) {
    for (const char* transport : {"unary", "stream"}) {
      const Output output =
          Run(std::string("bench --json --key-dim 4 --count 50 --duration 0 --warmup 0 --tokens 10 "
                          "--sessions 2 --concurrency 3 --window 4 --call ") +
              call + " --transport " + transport);
      EXPECT_EQ(output.exit_status, 0) << output.text;
      EXPECT_NE(output.text.find("\"calls\": 50"), std::string::npos) << output.text;
      EXPECT_NE(output.text.find("\"failed\": 0"), std::string::npos) << output.text;
    }
  }
  EXPECT_EQ(Run("list --json").text.find("sessionId"), std::string::npos);
}

TEST_F(Attnctl, BenchFailsWhenNoCallSucceeds) {
  server_.FailNext({grpc::Status::OK, grpc::Status::OK, grpc::Status::OK,
                    client::FakeError(grpc::StatusCode::INVALID_ARGUMENT, "UNSUPPORTED", "no")});
  const Output output =
      Run("bench --key-dim 4 --count 1 --duration 0 --warmup 0 --sessions 1 --tokens 10");
  EXPECT_EQ(output.exit_status, 1) << output.text;
  EXPECT_NE(output.text.find("1 INVALID_ARGUMENT UNSUPPORTED: no"), std::string::npos)
      << output.text;
}

TEST_F(Attnctl, RunningACommandAgainAfterALostAnswerCountedItsTokensTwice) {
  ASSERT_EQ(Run("create --key-dim 4 --value-dim 3 --id s").exit_status, 0);
  const std::string tokens = " s --keys k.npy --values v.npy";
  // GetServerInfo and GetSession are answered, all attempts of the command's own call are lost.
  const auto lose = [this](int attempts) {
    std::vector<grpc::Status> outcomes(2, grpc::Status::OK);
    outcomes.resize(2 + static_cast<std::size_t>(attempts),
                    {grpc::StatusCode::UNAVAILABLE, "the answer was lost"});
    server_.FailNext(outcomes);
  };
  lose(5);
  Output output = Run("append" + tokens);
  EXPECT_EQ(output.exit_status, 1);
  EXPECT_EQ(output.text,
            "attnctl append: the answer was lost (after 5 attempts) (to run the command again "
            "without counting tokens twice, add --position 0); check that the server runs and the "
            "address is right (--server, ATTND_SERVER)\n");
  EXPECT_EQ(Run("append" + tokens + " --position 0").exit_status, 0);
  const std::string step = "step" + tokens + " --queries q.npy --out o.npy";
  lose(5);
  EXPECT_NE(Run(step).text.find("add --position 20"), std::string::npos);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run(step + " --position 20").text, "20 queries answered at position 40 -> o.npy\n");
  }
  EXPECT_EQ(server_.PositionOf("s"), 40);
  EXPECT_EQ(server_.seen().replayed_messages, 1);
}

TEST(AttnctlCompletion, ContainsEveryCommandAndOption) {
  const CommandSpec spec = DescribeCommandLine();
  EXPECT_GE(spec.commands.size(), 11U);
  for (const std::string& script : {BashCompletion(spec), ZshCompletion(spec)}) {
    for (const CommandSpec& command : spec.commands) {
      EXPECT_NE(script.find(command.name), std::string::npos);
      for (const OptionSpec& option : command.options) {
        for (const std::string& name : option.names) {
          EXPECT_NE(script.find(name), std::string::npos) << command.name << " " << name;
        }
      }
    }
  }
}

TEST(AttnctlCompletion, KnowsFlagsFilesAndChoices) {
  const CommandSpec spec = DescribeCommandLine();
  const auto option = [&](const std::string& command, const std::string& name) {
    for (const CommandSpec& entry : spec.commands) {
      for (const OptionSpec& candidate : entry.options) {
        if (entry.name == command && candidate.names == std::vector<std::string>{name}) {
          return candidate;
        }
      }
    }
    ADD_FAILURE() << command << " " << name;
    return OptionSpec();
  };
  EXPECT_FALSE(option("attend", "--wait").takes_value);
  EXPECT_TRUE(option("attend", "--top-k").takes_value);
  EXPECT_TRUE(option("append", "--keys").takes_file);
  EXPECT_TRUE(option("attend", "--out").takes_file);
  EXPECT_EQ(option("create", "--engine").choices,
            (std::vector<std::string>{"exact", "linear", "kde"}));
  EXPECT_EQ(option("create", "--durability").choices,
            (std::vector<std::string>{"ephemeral", "checkpointed", "logged"}));
}

// What bash offers after the given words, the last one unfinished.
std::string BashOffers(const std::string& words) {
  return RunShell("bash -c '\n eval \"$(\"" ATTNCTL_PROGRAM
                  "\" completion bash)\"\n"
                  " COMP_WORDS=(attnctl " +
                  words +
                  ")\n COMP_CWORD=$((${#COMP_WORDS[@]}-1))\n"
                  " _attnctl; echo \"${COMPREPLY[*]}\"' 2>&1")
      .text;
}

TEST(AttnctlCompletion, WorksInBash) {
  EXPECT_EQ(BashOffers("app"), "append\n");
  EXPECT_EQ(BashOffers("append --ke"), "--keys\n");
  EXPECT_EQ(BashOffers("create --engine l"), "linear\n");
  EXPECT_EQ(BashOffers("fl"), "flush\n");
  EXPECT_EQ(BashOffers("create --durability l"), "logged\n");
  EXPECT_EQ(BashOffers("completion z"), "zsh\n");
  EXPECT_EQ(BashOffers("get --js"), "--json\n");
  EXPECT_EQ(BashOffers("--server x inf"), "info\n");
}

TEST(AttnctlFlags, BecomeAConfiguration) {
  SessionFlags flags;
  flags.engine = "linear";
  flags.feature_map = "identity";
  flags.guard = "clamp";
  flags.layers = 2;
  flags.key_dim = 8;
  flags.scale = 0.5F;
  flags.window = 128;
  flags.time_to_live = "1.5s";
  flags.labels = {"a=b=c", "d="};
  const auto config = ConfigOf(flags);
  ASSERT_TRUE(config.ok()) << config.status();
  const v1::LayerGroup& group = config->layer_groups(0);
  EXPECT_EQ(group.count(), 2);
  EXPECT_EQ(group.scale(), 0.5F);
  EXPECT_EQ(group.window_tokens(), 128);
  EXPECT_EQ(group.linear().feature_map().kind(), v1::IDENTITY);
  // The identity map has no denominator.
  EXPECT_EQ(group.linear().normalization(), v1::UNNORMALIZED);
  EXPECT_EQ(group.linear().guard().policy(), v1::DenominatorGuard::CLAMP);
  EXPECT_EQ(config->durability(), v1::EPHEMERAL);
  EXPECT_EQ(config->time_to_live().seconds(), 1);
  EXPECT_EQ(config->time_to_live().nanos(), 500'000'000);
  EXPECT_EQ(config->labels().at("a"), "b=c");
  EXPECT_EQ(config->labels().at("d"), "");

  flags.durability = "logged";
  EXPECT_EQ(ConfigOf(flags)->durability(), v1::LOGGED);

  flags.engine = "exact";
  flags.storage = "bf16";
  EXPECT_EQ(ConfigOf(flags)->layer_groups(0).exact().storage(), v1::BF16);

  flags.engine = "kde";
  flags.mode = "certified";
  flags.target_error = 0.02;
  flags.max_keys = 500;
  flags.session_seed = 7;
  const v1::KdeConfig kde = ConfigOf(flags)->layer_groups(0).kde();
  EXPECT_EQ(kde.mode(), v1::KdeConfig::CERTIFIED);
  EXPECT_EQ(kde.accuracy().target_error(), 0.02);
  EXPECT_EQ(kde.accuracy().max_keys(), 500);
  EXPECT_EQ(ConfigOf(flags)->seed(), 7U);
  EXPECT_EQ(Describe(ConfigOf(flags)->layer_groups(0)),
            "2 layers of kde (certified, error 0.02, 500 keys), 1 head (0 query heads), d_k 8, d_v "
            "0, scale 0.5, window of 128 tokens");
}

// Names once ended at the first number that no kind has.
TEST(AttnctlFlags, EveryFeatureMapIsOffered) {
  EXPECT_EQ(static_cast<int>(FeatureMapNames().size()),
            v1::FeatureMapKind_descriptor()->value_count() - 1);
  EXPECT_EQ(FeatureMapNames().back(), "efficient");
}

TEST(AttnctlText, Bytes) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Bytes(std::int64_t{1} << 40), "1.0 TiB");
}

TEST(AttnctlText, ASessionThatIsNotInMemorySaysSo) {
  v1::Session session;
  session.set_session_id("s");
  session.mutable_config()->set_durability(v1::LOGGED);
  session.add_layer_positions(70);
  session.add_layer_positions(65);
  session.set_position(65);
  session.add_durable_layer_positions(64);
  session.add_durable_layer_positions(64);
  EXPECT_NE(Describe(session).find("position    65 (by layer: 70, 65)\n"
                                   "durability  logged, durable up to position 64\n"
                                   "memory      not loaded\n"),
            std::string::npos)
      << Describe(session);
  const std::string line = ListLine(session);
  EXPECT_NE(line.find("          65 logged                 64 not loaded"), std::string::npos)
      << line;
  session.set_loaded(true);
  session.set_state_bytes(2048);
  EXPECT_NE(Describe(session).find("memory      2.0 KiB\n"), std::string::npos);
  EXPECT_NE(ListLine(session).find(" 64    2.0 KiB"), std::string::npos) << ListLine(session);
  session.mutable_config()->set_durability(v1::EPHEMERAL);
  session.clear_durable_layer_positions();
  EXPECT_NE(ListLine(session).find(" ephemeral               -    2.0 KiB"), std::string::npos)
      << ListLine(session);
  EXPECT_EQ(ListHeading().find("DURABLE ") + 7, line.find("64 not") + 2);
}

}  // namespace
}  // namespace attnd::attnctl
