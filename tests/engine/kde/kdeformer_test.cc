// The practical form: the blocks, the kernel against its reference, nothing counted twice, and what
// each stage is for.
#include "engine/kde/paper/kdeformer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/kde/paper/angular_hash.h"
#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/kde/paper_harness.h"
#include "tests/oracle/relative_error.h"

namespace attnd::engine::kde_test {
namespace {

Attended<Kdeformer> Attend(const Head& head, const KdeformerConfig& config) {
  return AttendBy<Kdeformer>(head, config);
}

Head WordVectors(std::int64_t count) {
  const data::TensorSet set = data::WordVectors();
  const auto cut = [&](const std::vector<float>& rows) {
    return OwnedRows{count, 100, {rows.begin(), rows.begin() + count * 100}};
  };
  const OwnedRows keys = cut(set.layers[0].keys);
  return {keys, keys, cut(set.layers[0].values), 1.0F};
}

TEST(KdeAngularHash, NeighbouringRanksDifferInOneSign) {
  std::set<std::uint32_t> codes;
  for (std::uint32_t rank = 0; rank < 4096; ++rank) {
    const std::uint32_t code = rank ^ (rank >> 1);
    EXPECT_EQ(GrayRank(code), rank);
    EXPECT_TRUE(codes.insert(code).second);
    if (rank > 0) {
      EXPECT_EQ(std::popcount(code ^ (rank - 1) ^ ((rank - 1) >> 1)), 1);
    }
  }
}

TEST(KdeAngularHash, AgreesAsOftenAsTheAngleSays) {
  // Two rows at 60 degrees: each sign differs with probability 1/3.
  const std::vector<float> rows = {1, 0, 0.5F, std::sqrt(0.75F)};
  Scratch scratch;
  double differing = 0;
  constexpr int kSeeds = 3000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::uint32_t ranks[2];
    AngularHash(seed, 2).Ranks(DenseRows(rows.data(), 2, 2), ranks, scratch);
    differing += std::popcount(ranks[0] ^ (ranks[0] >> 1) ^ ranks[1] ^ (ranks[1] >> 1));
  }
  const double draws = kSeeds * AngularHash::kBits;
  EXPECT_NEAR(differing / draws, 1.0 / 3, 4.5 * std::sqrt(2.0 / 9 / draws));
}

TEST(KdeSparseBlocks, HoldEveryKeyOnceInEqualParts) {
  for (const std::int64_t keys : {1, 63, 64, 65, 1000, 4097}) {
    for (const std::int64_t block_keys : {1, 64, 200, 100000}) {
      std::vector<std::uint32_t> ranks;
      for (std::int64_t i = 0; i < keys; ++i) {
        ranks.push_back(static_cast<std::uint32_t>(i * 7919 % 601));
      }
      const SparseBlocks blocks(ranks, block_keys);
      EXPECT_EQ(std::set<std::int64_t>(blocks.order().begin(), blocks.order().end()).size(),
                static_cast<std::size_t>(keys));
      EXPECT_EQ(blocks.first_place(0), 0);
      EXPECT_EQ(blocks.first_place(blocks.blocks()), keys);
      for (std::int64_t b = 0; b < blocks.blocks(); ++b) {
        const std::int64_t size = blocks.first_place(b + 1) - blocks.first_place(b);
        EXPECT_GE(size, 1);
        EXPECT_LE(size, (block_keys + 63) / 64 * 64);
        for (std::int64_t p = blocks.first_place(b); p < blocks.first_place(b + 1); ++p) {
          EXPECT_EQ(blocks.BlockOfPlace(p), b);
        }
      }
    }
  }
}

TEST(KdeSparseBlocks, OrderKeysByRankAndEqualRanksByIndex) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t i = 0; i < 3000; ++i) ranks.push_back(i * 7919 % 601 * 109);
  ranks[17] = 65535;
  const SparseBlocks blocks(ranks, 64);
  const auto rank_at = [&](std::size_t place) {
    return ranks[static_cast<std::size_t>(blocks.order()[place])];
  };
  for (std::size_t place = 1; place < ranks.size(); ++place) {
    ASSERT_LE(rank_at(place - 1), rank_at(place));
    if (rank_at(place - 1) == rank_at(place)) {
      ASSERT_LT(blocks.order()[place - 1], blocks.order()[place]);
    }
  }
  EXPECT_EQ(blocks.order().back(), 17);
  EXPECT_EQ(blocks.BlockOfRank(65535), blocks.blocks() - 1);
}

TEST(KdeKdeformer, EqualsItsReference) {
  for (const std::int64_t queries : {1, 3, 500}) {
    for (const std::int64_t keys : {200, 1000, 1111}) {
      const Head head = RandomHead(queries, keys, 30);
      const Attended<Kdeformer> run = Attend(head, {128, 300, 7});
      EXPECT_GE(run.method->blocks().blocks(), 2);
      std::vector<double> truth(static_cast<std::size_t>(queries * 20));
      for (std::int64_t i = 0; i < queries; ++i) {
        const double log_normalizer =
            RefKdeformer(head.inputs(), *run.method, i, truth.data() + i * 20);
        EXPECT_NEAR(run.log_normalizers[static_cast<std::size_t>(i)], log_normalizer, 1e-5);
      }
      EXPECT_LT(oracle::RelativeError(run.outputs, truth), 1e-5);
    }
  }
}

TEST(KdeKdeformer, EveryColumnSampledIsExact) {
  for (const std::int64_t queries : {1, 2, 300}) {
    const Head head = RandomHead(queries, 777, 33);
    const Attended<Kdeformer> run = Attend(head, {64, 777, 3});
    EXPECT_GE(run.method->blocks().blocks(), 12);
    const oracle::Answers truth = Softmax(head.inputs());
    EXPECT_LT(oracle::RelativeError(run.outputs, truth.outputs), 1e-5);
    EXPECT_LT(oracle::RelativeError(run.log_normalizers, truth.log_normalizers), 1e-6);
  }
}

TEST(KdeKdeformer, AllKeysInOneBlockIsExact) {
  const Head head = RandomHead(300, 777, 36);
  const Attended<Kdeformer> run = Attend(head, {777, 1, 3});
  EXPECT_EQ(run.method->blocks().blocks(), 1);
  EXPECT_EQ(run.method->evaluations(), 300 * 777);
  EXPECT_LT(oracle::RelativeError(run.outputs, Softmax(head.inputs()).outputs), 1e-5);
}

// Drawn columns of the own block must not count, or the error would not vanish with the rest.
TEST(KdeKdeformer, WeightsOfSampledColumnsAreUnbiased) {
  const Head head = RandomHead(4, 130, 39);
  const oracle::Answers truth = Softmax(head.inputs());
  std::vector<std::vector<double>> ratios(4);
  KdeformerConfig config = {64, 60, 0};
  for (config.seed = 0; config.seed < 1500; ++config.seed) {
    const Attended<Kdeformer> run = Attend(head, config);
    for (std::size_t i = 0; i < 4; ++i) {
      ratios[i].push_back(
          std::exp(static_cast<double>(run.log_normalizers[i]) - truth.log_normalizers[i]));
    }
  }
  for (const std::vector<double>& ratio : ratios) {
    const Moments moments = MomentsOf(ratio);
    EXPECT_NEAR(moments.mean, 1, 4.5 * moments.error + 1e-5);
    EXPECT_LT(moments.error, 0.01);
  }
}

double MeanError(const Head& head, const std::vector<double>& truth, KdeformerConfig config) {
  double sum = 0;
  constexpr std::uint64_t kSeeds = 4;
  for (config.seed = 0; config.seed < kSeeds; ++config.seed) {
    sum += FrobeniusError(Attend(head, config).outputs, truth);
  }
  return sum / static_cast<double>(kSeeds);
}

// On word vectors each half is worth something beside the other, as the paper has it.
TEST(KdeKdeformer, BlocksAndSamplesBothLowerTheError) {
  const Head head = WordVectors(2048);
  const std::vector<double> truth = Softmax(head.inputs()).outputs;
  const double both = MeanError(head, truth, {256, 512});
  EXPECT_LT(both, MeanError(head, truth, {64, 512}) * 0.97);  // smaller blocks
  EXPECT_LT(both, MeanError(head, truth, {256, 64}) * 0.75);  // fewer samples
  EXPECT_LT(both, 0.5);
}

TEST(KdeKdeformer, OwnKeyIsInTheOwnBlock) {
  const Head head = WordVectors(2048);
  const Attended<Kdeformer> run = Attend(head, {128, 64, 5});
  const SparseBlocks& blocks = run.method->blocks();
  std::int64_t found = 0;
  for (std::int64_t p = 0; p < 2048; ++p) {
    const std::int64_t key = blocks.order()[static_cast<std::size_t>(p)];
    found += run.method->query_block(key) == blocks.BlockOfPlace(p) ? 1 : 0;
  }
  EXPECT_GE(found, 2048 * 98 / 100);
}

TEST(KdeKdeformer, ProbabilitiesFollowResidualColumnsAndValues) {
  Head by_column = RandomHead(300, 2000, 42);
  // Twenty keys that many queries look at, and whose blocks are not theirs.
  for (std::size_t i = 0; i < std::size_t{12} * 20; ++i) by_column.keys.numbers[i] *= 4;
  Head by_value = RandomHead(300, 2000, 45);
  for (std::size_t i = 0; i < std::size_t{20} * 20; ++i) by_value.values.numbers[i] *= 100;
  for (const Head& head : {by_column, by_value}) {
    const Attended<Kdeformer> run = Attend(head, {128, 200, 1});
    double heavy = 0;
    double all = 0;
    for (std::size_t l = 0; l < 2000; ++l) {
      const double p = run.method->probabilities()[l];
      EXPECT_GE(p, 1.0 / 3 / 2000 * 0.999);
      heavy += l < 20 ? p : 0;
      all += p;
    }
    EXPECT_GT(heavy, 0.2);
    EXPECT_NEAR(all, 1, 1e-9);
  }
}

// Up to any place of the order there are as many draws as its probability says, but for one.
TEST(KdeKdeformer, DrawsAreStratifiedAlongTheOrder) {
  const Head head = RandomHead(100, 2000, 57);
  const Attended<Kdeformer> run = Attend(head, {64, 300, 8});
  std::vector<double> draws(2000, 0.0);
  const ColumnSample& sample = run.method->sample();
  const std::vector<double>& p = run.method->probabilities();
  for (std::size_t i = 0; i < sample.columns.size(); ++i) {
    const auto column = static_cast<std::size_t>(sample.columns[i]);
    draws[column] = std::exp(sample.log_weights[i]) * 300 * p[column];
  }
  double drawn = 0;
  double expected = 0;
  for (const std::int64_t key : run.method->blocks().order()) {
    drawn += draws[static_cast<std::size_t>(key)];
    expected += 300 * p[static_cast<std::size_t>(key)];
    ASSERT_NEAR(drawn, expected, 1 + 1e-6);
  }
  EXPECT_NEAR(drawn, 300, 1e-6);
}

TEST(KdeKdeformer, TakesAdversarialData) {
  for (const auto& [name, rows] : AdversarialRows()) {
    const Head head = {rows, rows, RandomRows(rows.count, 3, 48, 1.0F), 1.0F};
    const std::vector<double> truth = Softmax(head.inputs()).outputs;
    const Attended<Kdeformer> all = Attend(head, {64, rows.count, 2});
    EXPECT_LT(oracle::RelativeError(all.outputs, truth), 5e-3) << name;
    const Attended<Kdeformer> some =
        Attend(head, {64, std::max<std::int64_t>(1, rows.count / 3), 2});
    for (const float x : some.outputs) EXPECT_TRUE(std::isfinite(x)) << name;
  }
}

TEST(KdeKdeformer, RowsMayBePartsOfLongerOnes) {
  const Head head = RandomHead(50, 300, 51);
  const Attended<Kdeformer> dense = Attend(head, {64, 40, 4});
  const auto widen = [](const OwnedRows& rows) {
    std::vector<float> wide;
    for (std::int64_t i = 0; i < rows.count; ++i) {
      wide.insert(wide.end(), rows.rows().row(i), rows.rows().row(i) + rows.dim);
      wide.insert(wide.end(), 3, NAN);
    }
    return wide;
  };
  const std::vector<float> q = widen(head.queries);
  const std::vector<float> k = widen(head.keys);
  const std::vector<float> v = widen(head.values);
  std::vector<float> outputs(std::size_t{50} * 23, 5.0F);
  auto made = Kdeformer::Create(
      {{q.data(), 50, 12, 15}, {k.data(), 300, 12, 15}, {v.data(), 300, 20, 23}, head.scale},
      {64, 40, 4}, {{outputs.data(), 23}});
  ASSERT_TRUE(made.ok());
  Scratch scratch;
  while (!(*made)->Step(scratch)) {
  }
  for (std::size_t i = 0; i < 50; ++i) {
    for (std::size_t c = 0; c < 23; ++c) {
      EXPECT_EQ(outputs[i * 23 + c], c < 20 ? dense.outputs[i * 20 + c] : 5.0F);
    }
  }
}

TEST(KdeKdeformer, TakesTheMemoryThatIsStated) {
#ifdef ATTND_SANITIZED
  GTEST_SKIP() << "a sanitizer brings its own allocator";
#else
  const Head head = RandomHead(3000, 20000, 60);
  std::vector<float> outputs(std::size_t{3000} * 20);
  const KdeformerConfig config = {256, 4000, 1};
  Scratch scratch;
  const std::int64_t before = BytesInUse();
  auto made = Kdeformer::Create(head.inputs(), config, {{outputs.data(), 20}, nullptr});
  ASSERT_TRUE(made.ok());
  const std::int64_t peak = PeakBytes(**made, scratch, before);
  const std::int64_t stated = Kdeformer::Bytes({3000, 20000, 12, 20}, config);
  EXPECT_LE(peak, stated + (1 << 20));  // of which the scratch takes a part
  EXPECT_GE(peak, stated / 5);
#endif
}

TEST(KdeKdeformer, RowsThatLeaveF32AreMarked) {
  Head values = RandomHead(5, 200, 63);
  std::fill(values.values.numbers.begin(), values.values.numbers.end(), 3e38F);
  Head scores = RandomHead(5, 200, 66);
  for (float& x : scores.queries.numbers) x *= 1e25F;
  for (float& x : scores.keys.numbers) x *= 1e25F;
  for (const Head& head : {values, scores}) {
    const Attended<Kdeformer> run = Attend(head, {64, 100, 1});
    for (const float x : run.outputs) EXPECT_EQ(x, 0);
    for (const float x : run.log_normalizers) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(KdeKdeformer, NamesWhatItRefuses) {
  const Head head = RandomHead(5, 6, 54);
  const auto message = [&](const KdeformerConfig& config) {
    return std::string(Kdeformer::Create(head.inputs(), config, {}).status().message());
  };
  EXPECT_EQ(message({0, 1}), "block_keys is 0; it must be at least 1");
  EXPECT_EQ(message({1, 0}), "samples is 0; it must be at least 1");
}

}  // namespace
}  // namespace attnd::engine::kde_test
