// What is small enough to begin where it arrives: the sizes that a wrong estimate once let through.
#include "server/work.h"

#include <memory>

#include "engine/engine_config.h"
#include "gtest/gtest.h"

namespace attnd::server {
namespace {

std::unique_ptr<const engine::Engine> Make(const engine::LayerShape& shape, bool linear) {
  engine::EngineConfig config;
  config.shape = shape;
  if (linear) config.kind = engine::LinearConfig{};
  return *engine::MakeEngine(config);
}

engine::LayerShape Heads(std::int64_t heads, std::int64_t dim) {
  return {heads, heads, dim, dim, 1.0F};
}

TEST(Work, UsualQueriesAreBrief) {
  EXPECT_LE(AttendOperations(*Make(Heads(1, 64), true), 1 << 20, 1, 0), kBriefOperations);
  EXPECT_LE(AttendOperations(*Make(Heads(8, 64), true), 1 << 20, 1, 0), kBriefOperations);
  EXPECT_LE(AttendOperations(*Make(Heads(1, 64), false), 512, 1, 0), kBriefOperations);
}

TEST(Work, TheAppendOfAMegabyteIsShort) {
  for (const bool linear : {false, true}) {
    EXPECT_LE(AppendOperations(*Make(Heads(1, 64), linear), 0, 2048), kShortOperations);
    EXPECT_GT(AppendOperations(*Make(Heads(1, 64), linear), 0, 16384), kShortOperations);
  }
}

TEST(Work, ManyHeadsOfOneNumberAreNotBrief) {
  EXPECT_GT(AttendOperations(*Make(Heads(4096, 1), false), 1, 1, 0), kBriefOperations);
  EXPECT_GT(AttendOperations(*Make(Heads(819, 1), true), 1, 1, 0), kBriefOperations);
}

TEST(Work, ManyQueriesOverOneTokenAreComputedOverABlock) {
  EXPECT_GT(AttendOperations(*Make(Heads(1, 64), false), 1, 1024, 0), kBriefOperations);
  EXPECT_GT(AttendOperations(*Make(Heads(1, 64), false), 4, 32768, 0), kShortOperations);
}

TEST(Work, OneQueryOverALongContextIsReadFromMemory) {
  EXPECT_GT(AttendOperations(*Make(Heads(1, 64), false), 131072, 1, 0), kShortOperations);
}

TEST(Work, TopKeysAreCounted) {
  const auto exact = Make(Heads(1, 64), false);
  EXPECT_GT(AttendOperations(*exact, 64, 16, 64), 5 * AttendOperations(*exact, 64, 16, 0));
}

TEST(Work, TheTokenThatOpensABlockPaysForTheOneBefore) {
  const auto linear = Make(Heads(512, 64), true);
  EXPECT_LT(AppendOperations(*linear, 63, 1), kShortOperations);
  EXPECT_GT(AppendOperations(*linear, 64, 1), kShortOperations);
  EXPECT_LT(AppendOperations(*linear, 65, 1), kShortOperations);
  EXPECT_LT(AppendOperations(*linear, 0, 1), kShortOperations);
}

// A quantum of so many floats once held a second of folding for a map with many features.
TEST(Work, AQuantumOfAMapWithManyFeaturesHasFewerTokens) {
  EXPECT_EQ(AppendQuantumTokens(*Make(Heads(1, 64), true)), 1024);
  engine::LinearConfig taylor;
  taylor.feature_map.name = "taylor";
  engine::EngineConfig config;
  config.shape = Heads(1, 64);
  config.kind = taylor;
  EXPECT_EQ(AppendQuantumTokens(**engine::MakeEngine(config)), 64);
}

// A random map projects every row, which the estimates once left out: for short values that is most
// of the work.
TEST(Work, TheProjectionOfARandomMapIsCounted) {
  constexpr std::int64_t kDim = 128;
  engine::LinearConfig random;
  random.feature_map.name = "favor_positive";
  random.feature_map.features = kDim;
  engine::EngineConfig config;
  config.shape = {2, 6, kDim, 16, 1.0F};
  config.kind = random;
  const auto projecting = *engine::MakeEngine(config);
  config.kind = engine::LinearConfig{};  // as many features
  const auto elementwise = *engine::MakeEngine(config);
  EXPECT_EQ(AttendOperations(*projecting, 0, 100, 0) - AttendOperations(*elementwise, 0, 100, 0),
            std::int64_t{100} * 6 * kDim * kDim);
  EXPECT_EQ(AppendOperations(*projecting, 0, 50) - AppendOperations(*elementwise, 0, 50),
            std::int64_t{50} * 2 * kDim * kDim);
  EXPECT_LT(AppendQuantumTokens(*projecting), AppendQuantumTokens(*elementwise));
}

// One message with the largest position there is once kept a thread for ever: its upkeep was
// counted block by block from the session's position on, past the end of the numbers.
TEST(Work, NoUpkeepIsCountedAtPositionsThatCannotBe) {
  engine::EngineConfig config;
  config.shape = Heads(1, 16);
  config.kind = engine::KdeConfig{};
  const auto kde = *engine::MakeEngine(config);
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(AppendOperations(*kde, kLast - 1, 1), AppendOperations(*kde, kMostPosition + 1, 1));
  EXPECT_EQ(AppendOperations(*kde, -5, 1), AppendOperations(*kde, kMostPosition + 1, 1));
}

TEST(Work, AWindowBoundsWhatIsReadAndALongOneMakesSealsDearer) {
  engine::EngineConfig config;
  config.shape = Heads(1, 64);
  config.window_tokens = 256;
  const auto exact = *engine::MakeEngine(config);
  EXPECT_LE(AttendOperations(*exact, 1 << 20, 1, 0), kBriefOperations);
  EXPECT_EQ(AttendOperations(*exact, 1 << 20, 1, 0), AttendOperations(*exact, 1000, 1, 0));
  EXPECT_LT(AttendOperations(*exact, 64, 1, 0), AttendOperations(*exact, 1000, 1, 0));
  config.kind = engine::LinearConfig{};
  const auto linear = *engine::MakeEngine(config);
  EXPECT_EQ(AttendOperations(*linear, 1 << 20, 1, 0),
            AttendOperations(*Make(Heads(1, 64), true), 0, 1, 0));
  config.window_tokens = 1 << 20;
  EXPECT_GT(AppendOperations(**engine::MakeEngine(config), 64, 1),
            AppendOperations(*linear, 64, 1));
  EXPECT_GT(AppendOperations(*linear, 64, 1), AppendOperations(*Make(Heads(1, 64), true), 64, 1));
}

// An index is built while tokens arrive; the estimates once knew nothing of that, and two seals of
// eight kv-heads, 125 ms, were begun on the thread on which their token arrived.
TEST(Work, UpkeepOfAnIndexIsCountedWhereItIsDone) {
  engine::EngineConfig config;
  config.shape = Heads(8, 64);
  config.kind = engine::KdeConfig{};
  const auto kde = *engine::MakeEngine(config);
  const auto exact = Make(Heads(8, 64), false);
  EXPECT_EQ(AppendQuantumTokens(*kde), 64) << "each seal is prepared";
  // A span of 3,968 tokens is built at one seal, one of 4,096 at four.
  EXPECT_GT(AppendOperations(*kde, 4032, 1), 4 * kShortOperations);
  EXPECT_GT(AppendOperations(*kde, 3968, 128), 4 * kShortOperations);
  EXPECT_EQ(AppendOperations(*kde, 4032, 0), AppendOperations(*exact, 4032, 0));
  EXPECT_EQ(AppendOperations(*kde, 4033, 1), AppendOperations(*exact, 4033, 1));
  EXPECT_EQ(AppendOperations(*kde, 2000, 1000), AppendOperations(*exact, 2000, 1000));
  // The parts add up to the whole.
  const auto upkeep = [&](std::int64_t position, std::int64_t count) {
    return kde->UpkeepOperations(position, count);
  };
  std::int64_t parts = 0;
  for (std::int64_t position = 0; position < 20000; position += 100) parts += upkeep(position, 100);
  EXPECT_NEAR(static_cast<double>(parts), static_cast<double>(upkeep(0, 20000)),
              1e-6 * static_cast<double>(parts));
  EXPECT_GT(upkeep(0, std::int64_t{1} << 20), 40 * upkeep(0, 20000));
  EXPECT_EQ(upkeep(0, std::int64_t{1} << 59), std::int64_t{1} << 58);
}

TEST(Work, AbsurdSizesSaturate) {
  const auto exact = Make(Heads(1024, 1024), false);
  EXPECT_GT(AttendOperations(*exact, std::int64_t{1} << 50, std::int64_t{1} << 40, 64),
            kShortOperations);
  EXPECT_GT(AppendOperations(*exact, 0, std::int64_t{1} << 50), kShortOperations);
}

}  // namespace
}  // namespace attnd::server
