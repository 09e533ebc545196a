// Stated errors after they are calibrated, on word vectors and on heads of real models, with mode
// INDEX: over 20 draws they cover at least 95 % of errors in the mean and 90 % in the 5th
// percentile, with medians of at most 4 times the errors' 95 % quantile.
//
// The short forms have fewer keys and draws, and audit what they can.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/audit_draws.h"

namespace attnd::engine::kde_test {
namespace {

// As many audits as a plan ever makes; else 200 of them would take 10,000 queries.
constexpr AuditShares kEager = {100.0, 0.01};
#ifdef ATTND_SANITIZED
constexpr int kDraws = 1;
constexpr std::int64_t kWords = 4352;
#else
constexpr int kDraws = 20;
constexpr std::int64_t kWords = 8192;
#endif
// Of the spread. Some heads have 95 % of their errors below 1e-5 and 1 % above 0.01: there is no
// bar between.
constexpr double kNegligible = 5e-4;

void ExpectCoverage(const std::string& name, const std::vector<DrawnHead>& heads) {
  ASSERT_FALSE(heads.empty());
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const DrawnHead& drawn = heads[head];
    std::printf(
        "%s head %zu: coverage %.3f, 5th percentile %.3f (uncalibrated %.3f), median bar "
        "%.2g, 95 %% of errors %.2g (%.2f); calibrated after %lld queries\n",
        name.c_str(), head, drawn.mean_coverage, drawn.low_coverage, drawn.uncalibrated,
        drawn.median_bar, drawn.error_95, drawn.median_bar / drawn.error_95,
        static_cast<long long>(drawn.most_queries));
    EXPECT_GE(drawn.mean_coverage, 0.95);
    EXPECT_GE(drawn.low_coverage, 0.90);
    EXPECT_LE(drawn.median_bar, std::max(4.0 * drawn.error_95, kNegligible));
  }
}

enum class Words { kOwnKeys, kOwnKeysUnknown, kOtherWords, kValuesAreKeys };

// `count` keys; empty where the words are not there.
std::optional<AuditCase> WordCase(Words words, std::int64_t count) {
  const std::vector<float> rows = data::WordVectorRows();
  constexpr std::int64_t kDim = 100;
  const std::int64_t have = static_cast<std::int64_t>(rows.size()) / kDim;
  if (have < 2 * count) return std::nullopt;
  const float scale = 1.0F / std::pow(10.0F, 0.25F);
  const auto every = [&](std::int64_t first, std::int64_t step) {
    std::vector<float> taken;
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < kDim; ++c) {
        taken.push_back(scale * rows[Size((first + i * step) * kDim + c)]);
      }
    }
    return taken;
  };
  const bool own = words == Words::kOwnKeys || words == Words::kOwnKeysUnknown;
  AuditCase of;
  of.tokens = {.shape = {1, 1, kDim, kDim, 1.0F},
               .count = count,
               .keys = own ? every(0, 1) : every(0, 2),
               .values = {},
               .mask = std::vector<std::uint8_t>(Size(count), 1)};
  of.tokens.values = words == Words::kValuesAreKeys ? of.tokens.keys : every(2 * count - 1, -1);
  of.queries = own ? of.tokens.keys : every(1, 2);
  if (words == Words::kOwnKeys) {
    of.positions.resize(Size(count));
    std::iota(of.positions.begin(), of.positions.end(), 0);
  }
  return of;
}

struct WordParam {
  const char* name;
  Words words;
  double target;
};

std::string Name(const ::testing::TestParamInfo<WordParam>& info) { return info.param.name; }

class AuditFigures : public ::testing::TestWithParam<WordParam> {};

TEST_P(AuditFigures, OfWordVectors) {
  std::optional<AuditCase> of = WordCase(GetParam().words, kWords);
  if (!of.has_value()) GTEST_SKIP() << "../shared/data/ has no word vectors";
  of->accuracy.target_error = GetParam().target;
  of->audits = kEager;
  ExpectCoverage(GetParam().name, Draw(*of, kDraws));
}

INSTANTIATE_TEST_SUITE_P(Words, AuditFigures,
                         ::testing::Values(WordParam{"OwnKeys", Words::kOwnKeys, 0.05},
                                           WordParam{"OwnKeysUnknown", Words::kOwnKeysUnknown, 0.2},
                                           WordParam{"OtherWords", Words::kOtherWords, 0.0},
                                           WordParam{"ValuesAreKeys", Words::kValuesAreKeys, 0.05}),
                         Name);

class AuditHeadFigures : public ::testing::TestWithParam<data::SharedHeads> {
 protected:
  static void Run(const data::SharedHeads& heads, std::size_t from_layer, int draws,
                  const std::vector<double>& targets) {
    if (heads.tokens < 4096) GTEST_SKIP() << "too short for an index";
    const std::optional<data::TensorSet> set = data::ReadShared(heads);
    if (!set.has_value()) GTEST_SKIP() << "../shared/data/" << heads.name << "_k.npy is not there";
    for (std::size_t layer = from_layer; layer < set->layers.size(); ++layer) {
      AuditCase of = {.tokens = {.shape = set->shape,
                                 .count = set->tokens,
                                 .keys = set->layers[layer].keys,
                                 .values = set->layers[layer].values,
                                 .mask = std::vector<std::uint8_t>(Size(set->tokens), 1)},
                      .queries = set->layers[layer].queries,
                      .audits = kEager};
      of.positions.resize(Size(set->tokens));
      std::iota(of.positions.begin(), of.positions.end(), 0);
      for (const double target : targets) {
        of.accuracy.target_error = target;
        ExpectCoverage(std::string(heads.name) + " layer " + std::to_string(layer) + " " +
                           std::to_string(target),
                       Draw(of, draws));
      }
    }
  }
};

TEST_P(AuditHeadFigures, OfTheLastLayer) {
  Run(GetParam(), static_cast<std::size_t>(GetParam().layers - 1), 4, {0.0});
}

const auto kName = [](const auto& set) { return std::string(set.param.name); };
INSTANTIATE_TEST_SUITE_P(Sets, AuditHeadFigures, ::testing::ValuesIn(data::kSharedHeads), kName);

#ifndef ATTND_SANITIZED  // the short forms run the same code

class LongAuditFigures : public ::testing::TestWithParam<WordParam> {};

TEST_P(LongAuditFigures, OfWordVectors) {
  std::optional<AuditCase> of = WordCase(GetParam().words, 16384);
  if (!of.has_value()) GTEST_SKIP() << "../shared/data/ has no word vectors";
  of->audits = kEager;
  for (const double target : {0.0, 0.2, 0.05, 0.01}) {
    of->accuracy.target_error = target;
    ExpectCoverage(std::string(GetParam().name) + " " + std::to_string(target), Draw(*of, 20));
  }
}

INSTANTIATE_TEST_SUITE_P(Words, LongAuditFigures,
                         ::testing::Values(WordParam{"OwnKeys", Words::kOwnKeys, 0.0},
                                           WordParam{"OwnKeysUnknown", Words::kOwnKeysUnknown, 0.0},
                                           WordParam{"OtherWords", Words::kOtherWords, 0.0},
                                           WordParam{"ValuesAreKeys", Words::kValuesAreKeys, 0.0}),
                         Name);

using LongAuditHeadFigures = AuditHeadFigures;

TEST_P(LongAuditHeadFigures, OfAllLayers) { Run(GetParam(), 0, 20, {0.0, 0.05}); }

INSTANTIATE_TEST_SUITE_P(Sets, LongAuditHeadFigures, ::testing::ValuesIn(data::kSharedHeads),
                         kName);

#endif

}  // namespace
}  // namespace attnd::engine::kde_test
