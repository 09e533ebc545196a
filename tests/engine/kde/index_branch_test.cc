// Branches: contexts so long that queries pass by whole groups of leaves.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/branch_summary.h"
#include "engine/kde/index/index_state.h"
#include "engine/kde/index/ref_index.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

// A main span of 31 branches, one of 1,024 tokens and one of 256, raw blocks.
constexpr LayerShape kShape = {1, 2, 12, 16, 0.3F};
constexpr std::int64_t kTokens = 32768 + 500;

class KdeBranches : public ::testing::Test {
 protected:
  // Without audits, so that stated errors have to be the same as well.
  KdeBranches()
      : engine_(MakeKde(kShape, {.mode = KdeConfig::Mode::kIndex, .audits = {0.0, 0.0}})),
        tokens_(ClusteredTokens(kShape, kTokens, 300, 211)),
        queries_(KeysAsQueries(tokens_, kStep)),
        count_(static_cast<std::int64_t>(queries_.size()) / kShape.query_row()),
        snapshot_(exact_test::At(*engine_, tokens_, kTokens)) {}

  const IndexState& state() const { return static_cast<const IndexState&>(*snapshot_.sealed); }
  Answers AskOf(std::int64_t first, std::int64_t count) const {
    Asked asked;
    for (std::int64_t i = first; i < first + count; ++i) asked.positions.push_back(kStep * i);
    return Ask(*engine_, snapshot_, queries_.data() + first * kShape.query_row(), count, asked);
  }

  static constexpr std::int64_t kStep = 171;
  const std::unique_ptr<const Engine> engine_;
  const Tokens tokens_;
  const std::vector<float> queries_;
  const std::int64_t count_;
  const Snapshot snapshot_;
};

TEST_F(KdeBranches, HaveTheBitsOfTheReference) {
  ASSERT_FALSE(AlwaysLooksWithin(state().spans().front()->heads.front()->branches().count()));
  ASSERT_EQ(state().spans().size(), 3U);
  const Answers answers = AskOf(0, count_);
  std::int64_t leaves = 0;
  for (const auto& span : state().spans()) leaves += span->heads.front()->leaves();
  const std::int64_t always =
      kBlockTokens * static_cast<std::int64_t>(state().raw_blocks().size()) + snapshot_.rows;
  std::int64_t passed_by = 0;
  for (std::int64_t i = 0; i < count_; i += 2) {
    const std::int64_t row = i * kShape.query_heads + i % kShape.query_heads;
    std::vector<float> output(Size(kShape.value_dim));
    const float log_normalizer =
        RefIndexRow(kShape, state(), {snapshot_.tail.get(), snapshot_.rows, snapshot_.valid},
                    {.row = queries_.data() + row * kShape.key_dim,
                     .head = i % kShape.query_heads,
                     .position = kStep * i,
                     .threshold = kDefaultThreshold},
                    {}, output.data());
    const auto first = answers.exact.outputs.begin() + row * kShape.value_dim;
    ASSERT_TRUE(SameBits(output, {first, first + kShape.value_dim})) << i;
    ASSERT_EQ(log_normalizer, answers.exact.log_normalizers[Size(row)]) << i;
    passed_by += answers.keys[Size(row)] < always + leaves ? 1 : 0;
  }
  EXPECT_GT(passed_by, 5);  // rows that looked at fewer summaries than there are leaves
}

TEST_F(KdeBranches, AnswersDoNotDependOnTheNumberOfQueries) {
  const Answers all = AskOf(0, count_);
  for (const std::int64_t n : {1, 6, 7, 33, 96, 150}) {
    for (std::int64_t first = 0; first < count_; first += std::max(n, count_ / 4)) {
      const std::int64_t count = std::min(n, count_ - first);
      EXPECT_TRUE(AskOf(first, count) == all.Slice(first, count, count_))
          << count << " queries from " << first;
    }
  }
}

TEST_F(KdeBranches, AnswersAreNearTheTruthAndReadFewKeys) {
  const Answers answers = AskOf(0, count_);
  const std::vector<double> errors = UnitErrors(tokens_, queries_, answers);
  EXPECT_LT(Quantile(errors, 0.95), 0.035);
  double keys = 0.0;
  for (const std::int64_t count : answers.keys) keys += static_cast<double>(count);
  EXPECT_LT(keys / static_cast<double>(answers.keys.size()), 0.15 * static_cast<double>(kTokens));
}

// Means, variance and radius of a branch are those of its keys, weighted as its leaves weight them.
TEST_F(KdeBranches, AreSummarisedAsTheirKeysAre) {
  const HeadIndex& index = *state().spans().front()->heads.front();
  const std::int64_t d = kShape.key_dim;
  for (const std::int64_t branch : {std::int64_t{0}, std::int64_t{17}}) {
    double mass = 0.0;
    std::vector<double> mean(Size(d));
    std::vector<double> mean_value(Size(kShape.value_dim));
    const auto for_each_key = [&](const auto& f) {
      for (std::int64_t leaf = branch * kBranchLeaves; leaf < (branch + 1) * kBranchLeaves;
           ++leaf) {
        const BlockView<float>& block = index.leaf(leaf);
        for (std::int64_t j = 0; j < index.LeafKeys(leaf); ++j) {
          std::vector<double> key;
          double product = 0.0;
          for (std::int64_t c = 0; c < d; ++c) {
            key.push_back(static_cast<double>(block.keys_t[c * kBlockTokens + j]));
            product += key.back() * static_cast<double>(index.centre()[c]);
          }
          f(key, std::exp(product), block.values + j * index.layout().padded_value_dim);
        }
      }
    };
    for_each_key([&](const std::vector<double>& key, double weight, const float* value) {
      mass += weight;
      for (std::size_t c = 0; c < key.size(); ++c) mean[c] += weight * key[c];
      for (std::size_t c = 0; c < mean_value.size(); ++c) {
        mean_value[c] += weight * static_cast<double>(value[c]);
      }
    });
    double variance = 0.0;
    double radius = 0.0;
    double noise = 0.0;
    for_each_key([&](const std::vector<double>& key, double weight, const float* /*value*/) {
      double square = 0.0;
      for (std::size_t c = 0; c < key.size(); ++c) {
        square += (key[c] - mean[c] / mass) * (key[c] - mean[c] / mass);
      }
      variance += weight / mass * square / static_cast<double>(d);
      radius = std::max(radius, std::sqrt(square));
      noise += weight / mass * weight / mass;
    });
    double centre_mean = 0.0;
    for (std::int64_t c = 0; c < d; ++c) {
      const double truth = mean[Size(c)] / mass;
      centre_mean += truth * static_cast<double>(index.centre()[c]);
      EXPECT_NEAR(static_cast<double>(index.branches().mean_key(branch)[c * kBlockTokens]), truth,
                  1e-5);
    }
    for (std::int64_t c = 0; c < kShape.value_dim; ++c) {
      EXPECT_NEAR(static_cast<double>(index.branches().mean_value(branch)[c]),
                  mean_value[Size(c)] / mass, 1e-5);
    }
    const LeafStats stats = index.branches().stats();
    EXPECT_NEAR(static_cast<double>(stats.log_counts[branch]), std::log(mass) - centre_mean, 1e-4);
    EXPECT_NEAR(static_cast<double>(stats.variances[branch]), variance, 1e-4 * variance);
    EXPECT_NEAR(static_cast<double>(stats.noises[branch]), noise, 1e-4 * noise);
    EXPECT_GE(static_cast<double>(stats.radii[branch]), radius);
    EXPECT_LE(static_cast<double>(stats.radii[branch]), 2.0 * radius);
  }
}

// Rows of a strip select branches together or one by one, by how many do; a row that reads
// everything once changed how the others' sums were added up.
TEST(KdeStrips, ARowThatReadsEverythingChangesNoOther) {
  const LayerShape shape = {1, 1, 12, 16, 0.3F};
  const std::int64_t count = 5000;
  Tokens tokens = ClusteredTokens(shape, count, 40, 214);
  for (std::int64_t t = 0; t < count; t += 2) tokens.Mask(t);
  const auto engine = MakeKde(shape, {.mode = KdeConfig::Mode::kIndex, .audits = {0.0, 0.0}});
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  std::vector<float> queries = KeysAsQueries(tokens, 331);
  const std::int64_t good = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  ASSERT_GT(good, 12);
  const Answers alone = Ask(*engine, snapshot, queries.data(), good);
  queries.insert(queries.end(), Size(shape.query_row()), 1e30F);
  const Answers together = Ask(*engine, snapshot, queries.data(), good + 1);
  EXPECT_TRUE(together.Slice(0, good, good + 1) == alone);
}

// A span without a key has no columns, and where it was the last one a row wrote its branches into
// its neighbour's.
TEST(KdeStrips, AMaskedSpanIsNoSpan) {
  const LayerShape shape = {1, 1, 12, 16, 0.3F};
  const std::int64_t count = 3968 + 1024 + 256;
  Tokens tokens = ClusteredTokens(shape, count, 40, 215);
  for (std::int64_t t = 3968; t < 3968 + 1024; ++t) tokens.Mask(t);
  const auto engine = MakeKde(shape, {.mode = KdeConfig::Mode::kIndex, .audits = {0.0, 0.0}});
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  const auto& state = static_cast<const IndexState&>(*snapshot.sealed);
  ASSERT_EQ(state.spans().back()->heads.front()->keys(), 0);
  const std::vector<float> queries = KeysAsQueries(tokens, 97);
  const std::int64_t rows = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  const Answers answers = Ask(*engine, snapshot, queries.data(), rows);
  std::int64_t partly = 0;
  for (std::int64_t i = 0; i < rows; i += 3) {
    std::vector<float> output(Size(shape.value_dim));
    RefIndexRow(shape, state, {snapshot.tail.get(), snapshot.rows, snapshot.valid},
                {.row = queries.data() + i * shape.key_dim, .threshold = kDefaultThreshold}, {},
                output.data());
    const auto first = answers.exact.outputs.begin() + i * shape.value_dim;
    ASSERT_TRUE(SameBits(output, {first, first + shape.value_dim})) << i;
    partly += answers.masses[Size(i)] < 1.0F ? 1 : 0;
  }
  EXPECT_GT(partly, 5);
}

// Leaves whose weights are too small for f32 were called read: error 0, path EXACT.
TEST(KdeStrips, WhatIsNotReadIsNeverCalledRead) {
  const LayerShape shape = {1, 1, 12, 16, 1.0F};
  const std::int64_t count = 4096 + 64;
  Tokens tokens = ClusteredTokens(shape, count, 40, 216);
  for (std::int64_t t = 0; t < count; ++t)
    tokens.keys[Size(t * shape.key_row())] = t < 2048 ? 20.0F : -20.0F;
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  std::vector<float> query(Size(shape.key_dim));
  query.front() = 10.0F;
  const Answers answers = Ask(*engine, snapshot, query.data(), 1);
  EXPECT_LT(answers.keys.front(), 3500);
  EXPECT_EQ(answers.paths.front(), static_cast<std::uint8_t>(AnswerPath::kIndex));
  EXPECT_TRUE(std::isfinite(answers.errors.front()));
}

// The one query that resembles a key that resembles no other was wrong by most of its answer: the
// key hid in a leaf whose mean told nothing of it.
TEST(KdeIsolatedKeys, ATwinFarFromAllOthersIsFound) {
  const LayerShape shape = {1, 1, 16, 8, 1.0F};
  const std::int64_t count = 16384 + 100;
  Tokens tokens = ClusteredTokens(shape, count, 200, 212);
  const std::vector<float> far = RandomValues(shape.key_dim, 213, 2.4F);
  const std::int64_t twin = 5003;
  std::copy(far.begin(), far.end(), tokens.keys.begin() + twin * shape.key_row());
  for (std::int64_t c = 0; c < shape.value_dim; ++c) {
    tokens.values[Size(twin * shape.value_row() + c)] = 20.0F;
  }
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  const auto& span = *static_cast<const IndexState&>(*snapshot.sealed).spans().front();
  const HeadIndex& index = *span.heads.front();
  EXPECT_EQ(index.place(twin - span.span.first) / kBlockTokens, index.leaves() - 1);
  Asked asked;
  asked.accuracy.target_error = 10.0;  // nothing is read but what must be
  const Answers answers = Ask(*engine, snapshot, far.data(), 1, asked);
  EXPECT_LT(UnitErrors(tokens, far, answers).front(), 0.05);
}

// A key hid in a leaf that it does not resemble, and the query whose own key is its twin missed
// half of its answer.
TEST(KdeTwinKeys, ShareALeafOfTheIndex) {
  const LayerShape shape = {1, 1, 16, 8, 1.0F};
  const std::int64_t count = 16384 + 100;
  constexpr std::int64_t kPairs = 60;
  Tokens tokens = ClusteredTokens(shape, count, 200, 221);
  for (std::int64_t pair = 0; pair < kPairs; ++pair) {
    const std::vector<float> off =
        RandomValues(shape.key_dim, 230U + static_cast<std::uint32_t>(pair), 1.2F);
    const std::vector<float> apart =
        RandomValues(shape.key_dim, 330U + static_cast<std::uint32_t>(pair), 0.1F);
    float* key = tokens.keys.data() + (200 * pair + 117) * shape.key_row();
    float* twin = tokens.keys.data() + (200 * pair + 230) * shape.key_row();
    for (std::size_t c = 0; c < off.size(); ++c) {
      key[c] += off[c];
      twin[c] = key[c] + apart[c];
    }
  }
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  const auto& span = *static_cast<const IndexState&>(*snapshot.sealed).spans().front();
  const HeadIndex& index = *span.heads.front();
  std::int64_t found = 0;  // where a key's own leaf is read, and the isolated one
  for (std::int64_t pair = 0; pair < kPairs; ++pair) {
    const std::int64_t token = 200 * pair + 117 - span.span.first;
    const std::int64_t leaf = index.place(token) / kBlockTokens;
    const std::int64_t other = index.place(token + 113) / kBlockTokens;
    found += leaf == other || leaf == index.leaves() - 1 ? 1 : 0;
    found += leaf == other || other == index.leaves() - 1 ? 1 : 0;
  }
  EXPECT_GE(found, 106);  // 101 where twins do not look for each other
}

}  // namespace
}  // namespace attnd::engine::kde_test
