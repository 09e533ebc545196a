// Stored bytes of layers that are not what was saved: refused, whatever is wrong with them, and
// nothing but that happens.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/byte_io.h"
#include "engine/layer_loader.h"
#include "engine/layer_stream.h"
#include "engine/saved_layer.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/saved_layer_harness.h"

namespace attnd::engine::saved_test {
namespace {

using StatePtr = std::shared_ptr<const LayerState>;

constexpr std::size_t kSealedTokensAt = 4 + 4 + 8 + 9 * 8;

// One of each way in which a state is stored.
const std::array kStoredKinds = {"exact",        "exact_bf16", "exact_window_100", "kde_index",
                                 "elu_plus_one", "favor_far",  "efficient_spread", "window_6",
                                 "favor_window", "gated_gla",  "gated_gated_delta"};

struct Saved {
  explicit Saved(const std::string& name, std::int64_t position = 600)
      : kind(KindNamed(name)),
        engine(Make(kind)),
        stream(kind, *engine, position + 100),
        state(Extend(*engine, stream, EmptyLayer(*engine), position)),
        stored(Save(*engine, *state, 3)) {}

  Kind kind;
  std::unique_ptr<const Engine> engine;
  TokenStream stream;
  StatePtr state;
  Stored stored;
};

bool IsRefusal(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

// The checksum made right again.
std::string Rechecked(const std::string& bytes) {
  ByteWriter writer;
  writer.PutAll(std::span<const char>(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  return std::move(writer).Finish();
}

std::string Flipped(std::string bytes, std::size_t at, int bit) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
  return bytes;
}

// Calls use(part) for the root and the first segment.
template <typename Use>
void ForParts(Stored& stored, const Use& use) {
  use(stored.root);
  if (!stored.segments.empty()) use(stored.segments.front());
}

TEST(SavedLayerDamage, AFlippedBitAnywhereIsDataLoss) {
  for (const char* name : kStoredKinds) {
    SCOPED_TRACE(name);
    const Saved saved(name);
    Stored stored = saved.stored;
    ForParts(stored, [&](std::string& part) {
      const std::string good = part;
      for (std::size_t at = 0; at < good.size(); at += at < 200 ? 1 : 37) {
        part = Flipped(good, at, static_cast<int>(at % 8));
        EXPECT_TRUE(absl::IsDataLoss(Load(*saved.engine, stored).status())) << at;
      }
      part = good;
    });
  }
}

TEST(SavedLayerDamage, CutOffAnywhereIsRefusedWhateverTheChecksum) {
  for (const char* name : kStoredKinds) {
    SCOPED_TRACE(name);
    const Saved saved(name);
    Stored stored = saved.stored;
    ForParts(stored, [&](std::string& part) {
      const std::string good = part;
      for (std::size_t size = 0; size < good.size(); size += size < 200 ? 1 : 41) {
        part = good.substr(0, size);
        EXPECT_TRUE(absl::IsDataLoss(Load(*saved.engine, stored).status())) << size;
        if (size < sizeof(std::uint64_t)) continue;
        part = Rechecked(part);
        EXPECT_TRUE(IsRefusal(Load(*saved.engine, stored).status())) << size;
      }
      part = Rechecked(good + "12345678");
      EXPECT_TRUE(IsRefusal(Load(*saved.engine, stored).status()));
      part = good;
    });
    EXPECT_TRUE(Load(*saved.engine, stored).ok());
  }
}

// Rows are held against their digest. Sums are not: damage within their range gives a layer, which
// has to be safe to use.
TEST(SavedLayerDamage, UnderAGoodChecksumIsRefusedOrGivesALayerThatAnswers) {
  for (const char* name : kStoredKinds) {
    SCOPED_TRACE(name);
    const Saved saved(name);
    Stored stored = saved.stored;
    const bool digested =
        saved.engine->keeps_rows() && saved.engine->FirstKeptBlock(*saved.state->sealed) == 0;
    int given = 0;
    ForParts(stored, [&](std::string& part) {
      const std::string good = part;
      for (std::size_t at = 0; at + 8 < good.size(); at += at < 300 ? 1 : 29) {
        for (const int bit : {0, 6, 7}) {
          part = Rechecked(Flipped(good, at, bit));
          const absl::StatusOr<StatePtr> loaded = Load(*saved.engine, stored);
          if (!loaded.ok()) {
            EXPECT_TRUE(IsRefusal(loaded.status())) << at << ' ' << loaded.status();
            continue;
          }
          ++given;
          Ask(*saved.engine, **loaded);
          LayerDraft draft(*saved.engine, *loaded);
          Scratch scratch;
          // Sums may be so large now that there is no room for more.
          const absl::Status more = draft.Append(saved.stream.batch(), 600, 100, nullptr, scratch);
          EXPECT_TRUE(more.ok() || absl::IsOutOfRange(more)) << at << ' ' << more;
        }
      }
      part = good;
    });
    if (digested) {
      EXPECT_EQ(given, 0);
    }
  }
}

TEST(SavedLayerDamage, HugeNumbersAreRefusedWithoutTakingMemory) {
  for (const char* name : kStoredKinds) {
    SCOPED_TRACE(name);
    const Saved saved(name);
    for (const std::int64_t number :
         {std::int64_t{-64}, std::int64_t{1} << 40, std::int64_t{1} << 62, INT64_MAX - 63,
          INT64_MAX, INT64_MIN}) {
      // Sealed tokens, tail rows, the first kept block.
      for (std::size_t field = 0; field < 3; ++field) {
        Stored stored = saved.stored;
        std::memcpy(stored.root.data() + kSealedTokensAt + 8 * field, &number, sizeof number);
        stored.root = Rechecked(stored.root);
        const absl::Status status = Load(*saved.engine, stored).status();
        // Sums do not tell how many tokens they are of, beyond those that are unmasked.
        if (status.ok() && field == 0 && !saved.engine->keeps_rows()) continue;
        EXPECT_TRUE(IsRefusal(status)) << field << ' ' << number << ' ' << status;
      }
      // A segment's first block and count.
      for (std::size_t field = 0; field < 2 && !saved.stored.segments.empty(); ++field) {
        Stored stored = saved.stored;
        std::string& segment = stored.segments.front();
        std::memcpy(segment.data() + kSealedTokensAt + 8 * field, &number, sizeof number);
        segment = Rechecked(segment);
        EXPECT_TRUE(absl::IsDataLoss(Load(*saved.engine, stored).status())) << field << number;
      }
    }
  }
}

TEST(SavedLayerDamage, SegmentsThatAreMissingTwiceThereOrOfOtherTokensAreDataLoss) {
  const Saved saved("exact");
  ASSERT_EQ(saved.stored.segments.size(), 3U);
  const std::vector<std::vector<int>> orders = {{},     {0},       {0, 1},    {1, 2},
                                                {0, 2}, {0, 0, 1}, {1, 0, 2}, {0, 1, 1, 2}};
  for (const std::vector<int>& order : orders) {
    Stored stored = {saved.stored.root, {}};
    for (const int i : order) stored.segments.push_back(saved.stored.segments[Size(i)]);
    EXPECT_TRUE(absl::IsDataLoss(Load(*saved.engine, stored).status())) << order.size();
  }
  TokenStream other = saved.stream;
  other.values[Size(70 * saved.engine->shape().value_row())] += 1.0F;
  const StatePtr state = Extend(*saved.engine, other, EmptyLayer(*saved.engine), 600);
  EXPECT_TRUE(absl::IsDataLoss(
      Load(*saved.engine, {saved.stored.root, Save(*saved.engine, *state, 3).segments}).status()));
}

TEST(SavedLayerDamage, OfAnotherEngineOrShapeIsRefused) {
  std::vector<Kind> kinds;
  for (const char* name : kStoredKinds) kinds.push_back(KindNamed(name));
  kinds.push_back(KindNamed("window_3"));
  for (const char* name : {"exact", "elu_plus_one", "window_6", "gated_gla", "efficient_spread"}) {
    const Saved saved(name);
    for (const Kind& kind : kinds) {
      if (kind.name == name) continue;
      const std::unique_ptr<const Engine> engine = Make(kind);
      EXPECT_TRUE(IsRefusal(Load(*engine, saved.stored).status())) << name << " as " << kind.name;
    }
    for (const auto member : {&LayerShape::key_dim, &LayerShape::value_dim}) {
      Kind kind = saved.kind;
      kind.config.shape.*member += 1;
      const absl::Status status = Load(*Make(kind), saved.stored).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ' ' << status;
    }
  }
}

TEST(SavedLayerDamage, OfAnotherVersionIsDataLossThatNamesIt) {
  Saved saved("exact");
  saved.stored.root[4] = 2;
  saved.stored.root = Rechecked(saved.stored.root);
  const absl::Status status = Load(*saved.engine, saved.stored).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(status.message(), "root: version 2; this release reads 1");
}

}  // namespace
}  // namespace attnd::engine::saved_test
