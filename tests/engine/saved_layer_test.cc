// A layer that was saved and made again is the one that it was: it answers with the same bits, goes
// on to the same bits, and is saved as the same bytes.
#include "engine/saved_layer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/layer_loader.h"
#include "engine/layer_stream.h"
#include "engine/scratch.h"
#include "engine/state_digest.h"
#include "gtest/gtest.h"
#include "tests/engine/saved_layer_harness.h"

namespace attnd::engine::saved_test {
namespace {

using StatePtr = std::shared_ptr<const LayerState>;

class SavedLayer : public testing::TestWithParam<Kind> {
 protected:
  // Answers now and after more tokens, which fill the open block and seal others.
  static void ExpectSame(const Engine& engine, const TokenStream& stream, const StatePtr& state,
                         std::int64_t segment) {
    SCOPED_TRACE(state->position());
    const Stored stored = Save(engine, *state, segment);
    const absl::StatusOr<StatePtr> loaded = Load(engine, stored);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_EQ((*loaded)->position(), state->position());
    EXPECT_EQ((*loaded)->sealed_tokens, state->sealed_tokens);
    EXPECT_EQ(LayerDigest(engine, **loaded), LayerDigest(engine, *state));
    EXPECT_TRUE(Ask(engine, **loaded) == Ask(engine, *state));
    EXPECT_EQ(SaveRoot(engine, **loaded).value(), stored.root);
    StatePtr whole = state;
    StatePtr again = *loaded;
    for (const std::int64_t more : {1, 64, 200}) {
      whole = Extend(engine, stream, whole, whole->position() + more);
      again = Extend(engine, stream, again, again->position() + more);
      EXPECT_TRUE(Ask(engine, *again) == Ask(engine, *whole)) << more << " tokens later";
    }
    EXPECT_EQ(SaveRoot(engine, *again).value(), SaveRoot(engine, *whole).value());
  }
};

TEST_P(SavedLayer, AnswersAndGoesOnWithTheSameBits) {
  const std::unique_ptr<const Engine> engine = Make(GetParam());
  const TokenStream stream(GetParam(), *engine, 1600);
  StatePtr state = EmptyLayer(*engine);
  for (const std::int64_t position : {0, 1, 63, 64, 65, 128, 129, 192, 193, 500, 577, 1100, 1281}) {
    state = Extend(*engine, stream, state, position);
    ExpectSame(*engine, stream, state, position % 2 == 0 ? 3 : kMostSegmentBlocks);
  }
}

TEST_P(SavedLayer, WithoutAnUnmaskedTokenAnswersAndGoesOnWithTheSameBits) {
  const std::unique_ptr<const Engine> engine = Make(GetParam());
  TokenStream stream(GetParam(), *engine, 700);
  std::fill_n(stream.mask.begin(), 230, std::uint8_t{0});
  ExpectSame(*engine, stream, Extend(*engine, stream, EmptyLayer(*engine), 50), 1);
  ExpectSame(*engine, stream, Extend(*engine, stream, EmptyLayer(*engine), 200), 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SavedLayer, testing::ValuesIn(AllKinds()),
                         [](const auto& param) { return param.param.name; });

TEST(SavedLayerOfKde, WithSpansAnswersAndGoesOnWithTheSameBits) {
  for (const char* name : {"kde_index", "kde_certified", "kde_auto"}) {
    SCOPED_TRACE(name);
    const Kind kind = KindNamed(name);
    const std::unique_ptr<const Engine> engine = Make(kind);
    const TokenStream stream(kind, *engine, 9300);
    const StatePtr state = Extend(*engine, stream, EmptyLayer(*engine), 9001);
    const absl::StatusOr<StatePtr> loaded =
        Load(*engine, Save(*engine, *state, kMostSegmentBlocks));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(Ask(*engine, **loaded) == Ask(*engine, *state));
    EXPECT_TRUE(Ask(*engine, *Extend(*engine, stream, *loaded, 9300)) ==
                Ask(*engine, *Extend(*engine, stream, state, 9300)));
  }
}

TEST(SavedLayerSize, OfALinearLayerIsThatOfItsTotalsWhateverItsLength) {
  for (const char* name : {"elu_plus_one", "taylor", "gated_mamba2", "efficient"}) {
    SCOPED_TRACE(name);
    const Kind kind = KindNamed(name);
    const std::unique_ptr<const Engine> engine = Make(kind);
    const TokenStream stream(kind, *engine, 1281);
    const LayerShape& shape = engine->shape();
    const StatePtr state = Extend(*engine, stream, EmptyLayer(*engine), 1281);
    const std::int64_t c = engine->map_dim();
    const std::int64_t totals = shape.kv_heads * 8 * c * (shape.value_dim + 1);
    const std::int64_t steps = std::string(name) == "efficient" ? 4 * shape.kv_heads * c : 0;
    // One row is open; a form, a mask, places, digests and a checksum.
    const std::int64_t row =
        4 * (shape.key_row() + shape.value_row() + engine->tail_layout().log_decays);
    const auto bytes = std::ssize(SaveRoot(*engine, *state).value());
    EXPECT_GE(bytes, totals + steps + row);
    EXPECT_LE(bytes, totals + steps + row + 200 + 4 * shape.kv_heads);
    const StatePtr shorter = Extend(*engine, stream, EmptyLayer(*engine), 65);
    EXPECT_EQ(std::ssize(SaveRoot(*engine, *shorter).value()), bytes);
  }
}

TEST(SavedLayerSize, OfBfloat16RowsIsTwoBytesANumber) {
  const Kind kind = KindNamed("exact_bf16");
  const std::unique_ptr<const Engine> engine = Make(kind);
  const TokenStream stream(kind, *engine, 700);
  const StatePtr state = Extend(*engine, stream, EmptyLayer(*engine), 700);
  const std::int64_t block =
      2 * kBlockTokens * (engine->shape().key_row() + engine->shape().value_row()) + 8;
  const auto one = std::ssize(SaveSegment(*engine, *state, 3, 1).value());
  EXPECT_EQ(std::ssize(SaveSegment(*engine, *state, 2, 8).value()), one + 7 * block);
  EXPECT_LE(one, block + 200);
}

TEST(SavedLayerSegments, MayBeginBeforeTheWindowAndEndBehindTheLayer) {
  for (const char* name : {"exact_window_256", "kde_index"}) {
    SCOPED_TRACE(name);
    const Kind kind = KindNamed(name);
    const std::unique_ptr<const Engine> engine = Make(kind);
    const TokenStream stream(kind, *engine, 1600);
    std::vector<std::string> segments;
    StatePtr state = EmptyLayer(*engine);
    StatePtr shorter;
    // Blocks 0 to 23, three a segment, each written as soon as they are there.
    for (std::int64_t first = 0; first < 24; first += 3) {
      state = Extend(*engine, stream, state, (first + 3) * kBlockTokens + 1);
      segments.push_back(SaveSegment(*engine, *state, first, 3).value());
      if (first == 15) shorter = Extend(*engine, stream, state, 18 * kBlockTokens + 40);
    }
    const absl::StatusOr<StatePtr> loaded =
        Load(*engine, {SaveRoot(*engine, *shorter).value(), segments});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(Ask(*engine, **loaded) == Ask(*engine, *shorter));
  }
}

TEST(SavedLayerSegments, OutsideOfWhatIsKeptAreRefused) {
  const Kind kind = KindNamed("exact_window_256");
  const std::unique_ptr<const Engine> engine = Make(kind);
  const TokenStream stream(kind, *engine, 1281);
  const StatePtr state = Extend(*engine, stream, EmptyLayer(*engine), 1281);  // keeps 16 to 19
  EXPECT_TRUE(SaveSegment(*engine, *state, 16, 4).ok());
  for (const auto& [first, blocks] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {15, 1}, {16, 5}, {20, 1}, {16, 0}, {16, -1}, {-1, 1}, {16, INT64_MAX}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SaveSegment(*engine, *state, first, blocks).status()))
        << first << ' ' << blocks;
  }
  const std::unique_ptr<const Engine> linear = Make(KindNamed("elu_plus_one"));
  EXPECT_TRUE(absl::IsInvalidArgument(SaveSegment(*linear, *EmptyLayer(*linear), 0, 1).status()));
}

TEST(SavedLayerSteps, SealNoMoreThanABlockEach) {
  const Kind kind = KindNamed("exact");
  const std::unique_ptr<const Engine> engine = Make(kind);
  const TokenStream stream(kind, *engine, 400);
  const StatePtr state =
      Extend(*engine, stream, EmptyLayer(*engine), 400);  // six blocks are sealed
  const Stored stored = Save(*engine, *state, 4);
  ASSERT_EQ(stored.segments.size(), 2U);
  absl::StatusOr<LayerLoader> loader = LayerLoader::Make(*engine, stored.root);
  ASSERT_TRUE(loader.ok()) << loader.status();
  EXPECT_EQ(loader->first_block(), 0);
  EXPECT_EQ(loader->until_block(), 6);
  Scratch scratch;
  std::vector<int> steps;
  for (const std::string& segment : stored.segments) {
    ASSERT_TRUE(loader->Take(segment).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(loader->Take(segment)));
    steps.push_back(1);
    for (; !loader->Step(scratch).value(); ++steps.back()) {
      ASSERT_LT(steps.back(), 9);
    }
  }
  EXPECT_EQ(loader->next_block(), 6);
  EXPECT_EQ(steps, (std::vector<int>{4, 3}));  // and the open block
  ASSERT_TRUE(loader->Finish(scratch).ok());
}

}  // namespace
}  // namespace attnd::engine::saved_test
