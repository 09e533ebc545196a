// Certified rows against their reference, as bits, and stage by stage.
#include "engine/kde/certified/certified_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "engine/kde/certified/ref_certified.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/certified_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {
namespace {

constexpr CertifiedOptions kOptions = {
    .heavy_keys = 30, .most_heavy_keys = 60, .heavy_margin = 1.0F, .pairs = 16};

void ExpectReference(const CodedContext& context, const CertifiedOptions& options,
                     const float* query, std::uint64_t seed) {
  const Answer answer = Attend(context, options, query, seed);
  const RefCertifiedAnswer expected =
      RefCertifiedRow(context.shape, options, context.blocks, query, seed);
  ASSERT_EQ(answer.estimates.flag, RowFlag::kOk);
  for (std::size_t c = 0; c < answer.output.size(); ++c) {
    EXPECT_NEAR(answer.output[c], expected.output[c], 2e-5 * context.spread);
  }
  const CertifiedAnswer& e = answer.estimates;
  EXPECT_NEAR(e.log_normalizer, expected.log_normalizer, 1e-5);
  // The row takes the certain bounds and the range per block, which makes them a little wider.
  EXPECT_LE(e.log_normalizers.low, expected.log_normalizers.low + 1e-6);
  EXPECT_GE(e.log_normalizers.high, expected.log_normalizers.high - 1e-6);
  const double width = expected.log_normalizers.high - expected.log_normalizers.low;
  EXPECT_LE(e.log_normalizers.high - e.log_normalizers.low, 1.2 * width + 1e-5);
  EXPECT_NEAR(e.standard_error, expected.standard_error, 2e-5 * context.spread);
  EXPECT_NEAR(e.exact_mass, expected.exact_mass, 1e-5);
  EXPECT_EQ(e.keys_evaluated,
            std::ssize(expected.exact_keys) +
                std::ssize(std::set<std::int64_t>(expected.draws.begin(), expected.draws.end())));
}

TEST(KdeCertifiedRowTest, AgreesWithTheReference) {
  for (const std::int64_t d : {1, 7, 64}) {
    Tokens tokens = RandomTokens(700, d, 20, 1);
    for (std::int64_t i = 0; i < 700; i += 9) tokens.mask[Size(i)] = 0;
    std::fill(tokens.mask.begin() + 128, tokens.mask.begin() + 192, std::uint8_t{0});
    for (const Controls controls : {Controls::kNone, Controls::kMeans, Controls::kCodes}) {
      const CodedContext context(tokens, controls);
      for (std::uint32_t seed = 0; seed < 4; ++seed) {
        const std::vector<float> query = RandomValues(d, 50 + seed, 0.3F);
        ExpectReference(context, kOptions, query.data(), seed);
        ExpectReference(context, {.heavy_keys = 0, .most_heavy_keys = 0, .pairs = 5}, query.data(),
                        seed);
        ExpectReference(context, {.heavy_keys = 10, .most_heavy_keys = 10, .pairs = 0},
                        query.data(), seed);
      }
    }
  }
}

TEST(KdeCertifiedRowTest, AgreesWithTheReferenceWhereBlocksAreExact) {
  Tokens tokens = RandomTokens(640, 16, 5, 2);
  for (std::int64_t i = 0; i < 16; ++i)
    tokens.keys[Size(std::int64_t{70} * 16 + i)] *= 300;  // coarse codes
  CodedContext context(tokens);
  context.blocks[4].codes = {};
  const std::vector<float> query = RandomValues(16, 3, 0.5F);
  ExpectReference(context, kOptions, query.data(), 1);
  const Answer answer = Attend(context, kOptions, query.data(), 1);
  EXPECT_EQ(answer.estimates.keys_scanned, 8 * 64) << "blocks 1 and 4 are not scanned";
}

bool SameAnswers(const Answer& a, const Answer& b) {
  return SameBits(a.output, b.output) && a.estimates.log_normalizer == b.estimates.log_normalizer &&
         a.estimates.log_normalizers.low == b.estimates.log_normalizers.low &&
         a.estimates.log_normalizers.high == b.estimates.log_normalizers.high &&
         a.estimates.error == b.estimates.error &&
         a.estimates.exact_mass == b.estimates.exact_mass &&
         a.estimates.keys_evaluated == b.estimates.keys_evaluated;
}

// A row object that has answered other queries over other contexts gives the bits of a new one.
TEST(KdeCertifiedRowTest, BitsDoNotDependOnWhatTheRowAnsweredBefore) {
  const Tokens tokens = RandomTokens(1000, 32, 40, 4);
  const Tokens large = RandomTokens(3000, 48, 64, 5);
  const CodedContext context(tokens);
  const CodedContext other(large, Controls::kMeans);
  const std::vector<float> query = RandomValues(32, 6, 0.4F);
  const std::vector<float> other_query = RandomValues(48, 7, 0.4F);
  const Answer expected = Attend(context, kOptions, query.data(), 9);
  CertifiedRow row;
  for (int round = 0; round < 3; ++round) {
    row.Reset(other.shape, {.pairs = 50}, other.blocks, other_query.data(), 3);
    while (!row.Run()) {
    }
    row.Reset(context.shape, kOptions, context.blocks, query.data(), 9);
    if (round == 1) row.Run();  // and one that was given up on the way
    row.Reset(context.shape, kOptions, context.blocks, query.data(), 9);
    while (!row.Run()) {
    }
    EXPECT_TRUE(
        SameAnswers(expected, {std::vector<float>(row.output(), row.output() + 40), row.answer()}));
  }
}

// Another seed, another sample, the same heavy keys.
TEST(KdeCertifiedRowTest, TheSeedDecidesTheSampleAlone) {
  const Tokens tokens = RandomTokens(1000, 32, 40, 8);
  const CodedContext context(tokens);
  const std::vector<float> query = RandomValues(32, 9, 0.4F);
  const Answer a = Attend(context, kOptions, query.data(), 1);
  const Answer b = Attend(context, kOptions, query.data(), 2);
  EXPECT_FALSE(SameBits(a.output, b.output));
  EXPECT_EQ(a.estimates.moments.exact, b.estimates.moments.exact);
  CertifiedOptions summary = kOptions;
  summary.pairs = 0;
  EXPECT_TRUE(SameAnswers(Attend(context, summary, query.data(), 1),
                          Attend(context, summary, query.data(), 2)));
}

// The bits of one instruction set are those of all: the same inputs, the same digits, whichever
// set the program runs with.
TEST(KdeCertifiedRowTest, BitsAreThoseOfEveryInstructionSet) {
  Tokens tokens = RandomTokens(900, 33, 20, 10);
  std::mt19937 generator(11);  // whole numbers: nothing here depends on a library's normal numbers
  for (float& x : tokens.keys) x = static_cast<float>(static_cast<int>(generator() % 64) - 32) / 32;
  for (float& x : tokens.values) x = static_cast<float>(static_cast<int>(generator() % 64)) / 32;
  std::vector<float> query(33);
  for (float& x : query) x = static_cast<float>(static_cast<int>(generator() % 64) - 32) / 64;
  const CodedContext context(tokens);
  const Answer answer = Attend(context, kOptions, query.data(), 12);
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const float x : answer.output) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001B3ULL;
  }
  EXPECT_EQ(hash, 1408864072618636373ULL);
}

TEST(KdeCertifiedRowTest, QuantaAreBounded) {
  const Tokens tokens = RandomTokens(std::int64_t{64} * 800, 128, 16, 13, 0.3F);
  const CodedContext context(tokens);
  const std::vector<float> query = RandomValues(128, 14, 0.3F);
  CertifiedRow row;
  row.Reset(context.shape, {.heavy_keys = 1000, .most_heavy_keys = 1000, .pairs = 600},
            context.blocks, query.data(), 1);
  int quanta = 1;
  while (!row.Run()) ++quanta;
  // Ten stages; 7 MB of codes are two quanta, 512 keys are one: 1,000 heavy keys are two, 1,200
  // draws three.
  EXPECT_GE(quanta, 10 + 1 + 1 + 2);
  EXPECT_TRUE(row.Run()) << "a row that is done stays so";
}

// Two partitions of a context, each with its own sample, merged by their weights.
TEST(KdeCertifiedRowTest, PartitionsMergeToAnAnswerWithAnHonestBar) {
  const Tokens tokens = RandomTokens(2048, 32, 24, 15, 0.8F);
  const std::vector<float> queries = RandomValues(std::int64_t{60} * 32, 16, 0.5F);
  const oracle::Answers truth = Truth(tokens, queries);
  CodedContext left(tokens);
  CodedContext right(tokens);
  left.blocks.resize(8);
  right.blocks.erase(right.blocks.begin(), right.blocks.begin() + 8);
  int covered = 0;
  int inside = 0;
  double square = 0;
  double whole_square = 0;
  for (std::int64_t q = 0; q < 60; ++q) {
    const float* query = queries.data() + q * 32;
    const Answer a = Attend(left, kOptions, query, 2 * Size(q));
    const Answer b = Attend(right, kOptions, query, 2 * Size(q) + 1);
    ErrorMoments moments = a.estimates.moments;
    MergeMoments(b.estimates.moments, moments);
    const double share = std::exp(a.estimates.log_normalizer - moments.reference) / moments.total();
    Answer merged = a;
    for (std::size_t c = 0; c < merged.output.size(); ++c) {
      merged.output[c] = static_cast<float>(share * static_cast<double>(a.output[c]) +
                                            (1 - share) * static_cast<double>(b.output[c]));
    }
    const double error = ErrorOfRow(merged, truth, q);
    if (error <= ErrorBar(moments, merged.output.data(), 24)) ++covered;
    square += error * error;
    const double standard_error = StandardError(moments, merged.output.data(), 24);
    whole_square += standard_error * standard_error;
    const LogInterval interval = LogNormalizerInterval(moments);
    const double log_truth = truth.log_normalizers[Size(q)];
    if (log_truth >= interval.low && log_truth <= interval.high) ++inside;
    EXPECT_LT(interval.high - interval.low, 0.2);
  }
  EXPECT_GE(covered, 57);
  EXPECT_GE(inside, 57);
  EXPECT_NEAR(std::sqrt(square / whole_square), 1.0, 0.15);
}

// Each stage, left out or spoilt, must show.

double RootMeanSquareError(const CodedContext& context, const Tokens& tokens,
                           const CertifiedOptions& options, const std::vector<float>& queries) {
  const oracle::Answers truth = Truth(tokens, queries);
  double square = 0;
  const std::int64_t count = std::ssize(queries) / tokens.key_dim;
  for (std::int64_t q = 0; q < count; ++q) {
    const Answer answer = Attend(context, options, queries.data() + q * tokens.key_dim,
                                 static_cast<std::uint64_t>(q));
    square += std::pow(ErrorOfRow(answer, truth, q), 2);
  }
  return std::sqrt(square / static_cast<double>(count)) / context.spread;
}

TEST(KdeCertifiedAblationTest, EveryStageLowersTheError) {
  // Values follow keys in part, and keys of a block are alike, as in leaves.
  Tokens tokens = RandomTokens(4096, 32, 32, 20, 0.6F);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    for (std::int64_t c = 0; c < 32; ++c) {
      tokens.keys[Size(i * 32 + c)] += 0.8F * tokens.keys[Size(i / 64 * 64 * 32 + c)];
      tokens.values[Size(i * 32 + c)] += 2 * tokens.keys[Size(i * 32 + c)];
    }
  }
  const std::vector<float> queries = RandomValues(std::int64_t{40} * 32, 22, 0.7F);
  const auto error = [&](Controls controls, std::int64_t heavy, std::int64_t pairs) {
    return RootMeanSquareError(
        CodedContext(tokens, controls), tokens,
        {.heavy_keys = heavy, .most_heavy_keys = heavy, .heavy_margin = 0, .pairs = pairs},
        queries);
  };
  const double all = error(Controls::kMeans, 64, 64);
  EXPECT_LT(all, 0.8 * error(Controls::kMeans, 0, 64)) << "heavy keys";
  // Fewer strata than blocks: else strata do what means do.
  EXPECT_LT(error(Controls::kMeans, 64, 8), 0.8 * error(Controls::kNone, 64, 8)) << "means";
  EXPECT_LT(all, 0.6 * error(Controls::kMeans, 64, 16)) << "a larger sample";
  EXPECT_LT(all, 0.8 * error(Controls::kMeans, 64, 0)) << "a sample at all";
  EXPECT_GT(all, 10 * error(Controls::kCodes, 64, 64)) << "values in 8 bits as controls";
}

TEST(KdeCertifiedAblationTest, CodesCarryTheWeights) {
  Tokens tokens = RandomTokens(2048, 32, 8, 30);
  const std::vector<float> queries = RandomValues(std::int64_t{20} * 32, 31, 0.5F);
  const CodedContext context(tokens);
  CodedContext spoilt(tokens);
  // Steps of zero: every key of a block has the score of its centre.
  const std::vector<float> zeros(kBlockTokens, 0.0F);
  for (CertifiedBlock& block : spoilt.blocks) block.codes.steps = zeros.data();
  EXPECT_GT(RootMeanSquareError(spoilt, tokens, kOptions, queries),
            20 * RootMeanSquareError(context, tokens, kOptions, queries));
}

}  // namespace
}  // namespace attnd::engine::certified_test
