// All modes of the engine kde give back the rows that they sealed, from wherever an index has put
// them, and a state that is made of them is the same.
#include "tests/engine/kept_rows.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kde/index/index_state.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"

namespace attnd::engine::kde_test {
namespace {

using Mode = KdeConfig::Mode;

constexpr LayerShape kShape = {2, 4, 6, 5, 0.4F};

// Without audits, so that stated errors have to be the same as well.
std::unique_ptr<const Engine> MakeUnaudited(Mode mode) {
  return MakeKde(kShape, {.mode = mode, .audits = {0.0, 0.0}});
}

// Masked here and there, and in blocks [first, first + 4) altogether.
Tokens MaskedTokens(std::int64_t count, std::int64_t first_masked) {
  Tokens tokens = ClusteredTokens(kShape, count, 40, 91);
  for (std::int64_t t = 5; t < count; t += 13) tokens.Mask(t);
  for (std::int64_t t = 0; t < 4 * kBlockTokens; ++t) tokens.Mask(first_masked + t);
  return tokens;
}

void ExpectAllKept(const Engine& engine, const Tokens& tokens, const SealedState& state,
                   std::int64_t sealed) {
  ASSERT_TRUE(engine.keeps_rows());
  ASSERT_EQ(engine.FirstKeptBlock(state), 0);
  for (std::int64_t b = 0; b < sealed / kBlockTokens; ++b) ExpectKept(engine, tokens, state, b);
}

TEST(KdeKeptRows, ComeBackFromSpansOfAllLengthsAndFromRawBlocks) {
  constexpr std::int64_t kMain = 31744;
  constexpr std::int64_t kShortest = kMain + 16384 + 4096 + 1024;  // a span of masked tokens only
  constexpr std::int64_t kSealed = kShortest + 256 + 128;
  Tokens tokens = MaskedTokens(kSealed, kShortest);
  // Bits that arithmetic would not keep, and a key that is there twice.
  tokens.keys[Size(71 * kShape.key_row())] = -0.0F;
  tokens.values[Size(71 * kShape.value_row())] = -0.0F;
  tokens.keys[Size(73 * kShape.key_row())] = 1e-42F;
  tokens.values[Size(73 * kShape.value_row())] = -1e-42F;
  std::copy_n(tokens.keys.begin() + 72 * kShape.key_row(), kShape.key_row(),
              tokens.keys.begin() + 9000 * kShape.key_row());
  const auto engine = MakeUnaudited(Mode::kIndex);
  const auto sealed_state = engine->NewState();
  const auto& state = static_cast<const IndexState&>(*sealed_state);
  std::int64_t sealed = 0;
  for (const std::int64_t to : {std::int64_t{64}, std::int64_t{4096 - 64}, std::int64_t{4096},
                                std::int64_t{5440}, std::int64_t{8192}, kSealed}) {
    exact_test::SealTokens(*engine, tokens, sealed, to, *sealed_state);
    sealed = to;
    ExpectAllKept(*engine, tokens, state, sealed);
  }
  std::vector<std::int64_t> lengths;
  for (const auto& span : state.spans()) lengths.push_back(span->span.tokens);
  ASSERT_EQ(lengths, (std::vector<std::int64_t>{kMain - 64, 16384, 4096, 1024, 256}));
  ASSERT_EQ(state.spans().back()->heads.front()->keys(), 0);
  ASSERT_EQ(state.raw_blocks().size(), 3U);
}

// Of the tokens of a layer; asked at every length, and again after more of them.
void ExpectSameAfterRestoring(Mode mode, const std::vector<std::int64_t>& lengths) {
  const auto engine = MakeUnaudited(mode);
  const Tokens tokens = MaskedTokens(lengths.back(), 1024);
  const std::vector<float> queries = KeysAsQueries(tokens, 211, 1.5F);
  const std::int64_t count = std::ssize(queries) / kShape.query_row();
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) {
    SCOPED_TRACE(lengths[i]);
    Snapshot snapshot = exact_test::At(*engine, tokens, lengths[i]);
    ExpectAllKept(*engine, tokens, *snapshot.sealed, snapshot.sealed_tokens);
    const std::shared_ptr<SealedState> restored =
        Restored(*engine, *snapshot.sealed, snapshot.sealed_tokens / kBlockTokens);
    EXPECT_EQ(restored->bytes(), snapshot.sealed->bytes());
    const Answers before = Ask(*engine, snapshot, queries.data(), count, {.top_k = 3});
    const std::int64_t sealed = snapshot.sealed_tokens;
    snapshot.sealed = restored;
    EXPECT_TRUE(Ask(*engine, snapshot, queries.data(), count, {.top_k = 3}) == before);

    Snapshot later = exact_test::At(*engine, tokens, lengths[i + 1]);
    const Answers after = Ask(*engine, later, queries.data(), count, {.top_k = 3});
    const std::int64_t later_bytes = later.sealed->bytes();
    later.sealed = engine->Clone(*restored);
    exact_test::SealTokens(*engine, tokens, sealed, later.sealed_tokens, *later.sealed);
    EXPECT_EQ(later.sealed->bytes(), later_bytes);
    EXPECT_TRUE(Ask(*engine, later, queries.data(), count, {.top_k = 3}) == after);
  }
}

// While spans are built, where they have just become visible, and at rest.
TEST(KdeKeptRows, MakeAnIndexOfTheSameBits) {
  ExpectSameAfterRestoring(Mode::kIndex, {0, 1, 64, 65, 3968 + 130, 4096 + 1, 5500, 8100, 12700});
}

TEST(KdeKeptRows, MakeAStateOfModeAutoOfTheSameBits) {
  ExpectSameAfterRestoring(Mode::kAuto, {65, 4096 + 1, 8200, 9000});
}

TEST(KdeKeptRows, MakeCodesOfTheSameBits) {
  ExpectSameAfterRestoring(Mode::kCertified, {0, 1, 64, 65, 1300, 2900, 4200});
}

TEST(KdeKeptRows, MakeAStateOfModePaperOfTheSameBits) {
  ExpectSameAfterRestoring(Mode::kPaper, {0, 1, 64, 65, 1300, 1500});
}

}  // namespace
}  // namespace attnd::engine::kde_test
