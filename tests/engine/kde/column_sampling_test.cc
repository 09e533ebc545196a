// Algorithm 1: the sampling matrix, each stage against its definition, and the product against the
// f64 oracle.
#include "engine/kde/paper/column_sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/random.h"
#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/kde/paper_harness.h"
#include "tests/oracle/relative_error.h"

namespace attnd::engine::kde_test {
namespace {

Attended<ColumnSampling> Attend(const Head& head, const ColumnSamplingConfig& config) {
  return AttendBy<ColumnSampling>(head, config);
}

TEST(KdeColumnSample, PiTransposePiIsTheIdentityOnAverage) {
  const std::vector<double> probabilities = {0.4, 0.3, 0.2, 0.05, 0.03, 0.02};
  constexpr std::uint64_t kSeeds = 20000;
  constexpr std::int64_t kDraws = 5;
  for (const Draws kind : {Draws::kIndependent, Draws::kStratified}) {
    std::vector<std::vector<double>> weights(probabilities.size());
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const ColumnSample sample = DrawColumns(probabilities, kDraws, kind, StreamSeed(99, seed));
      std::vector<double> diagonal(probabilities.size(), 0.0);
      double drawn = 0;
      for (std::size_t i = 0; i < sample.columns.size(); ++i) {
        const auto column = static_cast<std::size_t>(sample.columns[i]);
        diagonal[column] += std::exp(sample.log_weights[i]);
        drawn += diagonal[column] * kDraws * probabilities[column];
      }
      ASSERT_NEAR(drawn, kDraws, 1e-9);  // multiplicities
      for (std::size_t l = 0; l < diagonal.size(); ++l) weights[l].push_back(diagonal[l]);
    }
    for (const std::vector<double>& weight : weights) {
      const Moments moments = MomentsOf(weight);
      EXPECT_NEAR(moments.mean, 1, 4.5 * moments.error + 1e-9);
      EXPECT_LT(moments.error, 0.03);
    }
    // The first column's probability is two strata of five.
    const double error = MomentsOf(weights[0]).error;
    if (kind == Draws::kStratified) {
      EXPECT_LT(error, 1e-12);
    } else {
      EXPECT_GT(error, 1e-3);
    }
  }
}

TEST(KdeColumnSample, NeverDrawsWhatHasNoProbability) {
  const std::vector<double> probabilities = {0, 0.5, 0, 0.5, 0, 0, 0, 0, 0, 0};
  for (const Draws kind : {Draws::kIndependent, Draws::kStratified}) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      for (const std::int64_t column : DrawColumns(probabilities, 9, kind, seed).columns) {
        EXPECT_TRUE(column == 1 || column == 3);
      }
    }
  }
}

TEST(KdeColumnSampling, StagesEqualTheirDefinitions) {
  const Head head = RandomHead(70, 90, 1);
  ColumnSamplingConfig config;
  config.samples = 30;
  config.method = DensityMethod::kExact;
  const Attended<ColumnSampling> run = Attend(head, config);
  const AttentionInputs in = head.inputs();
  std::vector<double> norms(90, 0.0);
  for (std::int64_t i = 0; i < 70; ++i) {
    double normalizer = 0;
    for (std::int64_t j = 0; j < 90; ++j) {
      normalizer += std::exp(0.5F * DotF64(in.queries.row(i), in.keys.row(j), 12));
    }
    EXPECT_NEAR(run.method->log_normalizers()[static_cast<std::size_t>(i)], std::log(normalizer),
                1e-5);
    EXPECT_NEAR(run.log_normalizers[static_cast<std::size_t>(i)], std::log(normalizer), 1e-5);
    for (std::int64_t j = 0; j < 90; ++j) {
      const double entry =
          std::exp(0.5F * DotF64(in.queries.row(i), in.keys.row(j), 12)) / normalizer;
      norms[static_cast<std::size_t>(j)] += entry * entry;
    }
  }
  double all_norms = 0;
  double all_values = 0;
  for (std::int64_t j = 0; j < 90; ++j) {
    all_norms += norms[static_cast<std::size_t>(j)];
    all_values += DotF64(in.values.row(j), in.values.row(j), 20);
  }
  for (std::int64_t j = 0; j < 90; ++j) {
    const auto at = static_cast<std::size_t>(j);
    EXPECT_NEAR(run.method->log_column_norms()[at], std::log(norms[at]), 1e-4);
    const double share =
        norms[at] / all_norms / 2 + DotF64(in.values.row(j), in.values.row(j), 20) / all_values / 2;
    EXPECT_NEAR(run.method->probabilities()[at], share, 1e-5 * share);
  }
}

TEST(KdeColumnSampling, ProductEqualsItsReference) {
  const Head head = RandomHead(400, 700, 4);
  ColumnSamplingConfig config;
  config.samples = 150;
  config.method = DensityMethod::kExact;
  const Attended<ColumnSampling> run = Attend(head, config);
  EXPECT_LT(run.method->sample().columns.size(), 150U);  // some were drawn twice
  std::vector<double> truth(std::size_t{400} * 20);
  for (std::int64_t i = 0; i < 400; ++i) {
    RefSampledProduct(head.inputs(), i, run.method->log_normalizers()[static_cast<std::size_t>(i)],
                      run.method->sample(), truth.data() + i * 20);
  }
  EXPECT_LT(oracle::RelativeError(run.outputs, truth), 1e-5);
}

TEST(KdeColumnSampling, EveryColumnGivesSoftmaxAttention) {
  for (const std::int64_t queries : {1, 7, 300}) {
    const Head head = RandomHead(queries, 350, 7);
    ColumnSamplingConfig config;
    config.samples = 350;
    const Attended<ColumnSampling> run = Attend(head, config);
    EXPECT_LT(oracle::RelativeError(run.outputs, Softmax(head.inputs()).outputs), 1e-5);
  }
}

// Over seeds the mean of A Pi^T Pi V is A V.
TEST(KdeColumnSampling, NumeratorIsUnbiased) {
  const Head head = RandomHead(3, 60, 10);
  const std::vector<double> truth = Softmax(head.inputs()).outputs;
  std::vector<std::vector<double>> offs(truth.size());
  ColumnSamplingConfig config;
  config.samples = 20;
  config.method = DensityMethod::kExact;
  for (config.seed = 0; config.seed < 1500; ++config.seed) {
    const Attended<ColumnSampling> run = Attend(head, config);
    for (std::size_t i = 0; i < truth.size(); ++i) {
      offs[i].push_back(static_cast<double>(run.outputs[i]) - truth[i]);
    }
  }
  for (const std::vector<double>& off : offs) {
    const Moments moments = MomentsOf(off);
    EXPECT_NEAR(moments.mean, 0, 4.5 * moments.error);
    EXPECT_LT(moments.error, 0.02);
  }
}

double MeanError(const Head& head, ColumnSamplingConfig config) {
  const std::vector<double> truth = Softmax(head.inputs()).outputs;
  double sum = 0;
  constexpr std::uint64_t kSeeds = 8;
  for (config.seed = 0; config.seed < kSeeds; ++config.seed) {
    sum += FrobeniusError(Attend(head, config).outputs, truth);
  }
  return sum / static_cast<double>(kSeeds);
}

TEST(KdeColumnSampling, ErrorFallsWithTheRootOfTheSamples) {
  const Head head = RandomHead(200, 2000, 13);
  ColumnSamplingConfig config;
  config.method = DensityMethod::kExact;
  config.samples = 100;
  const double few = MeanError(head, config);
  config.samples = 1600;
  const double many = MeanError(head, config);
  EXPECT_NEAR(std::log(few / many) / std::log(16.0), 0.5, 0.1);
}

// What each half of the mixture is for. Columns of norm 0 but for a few: uniform draws would miss
// them.
TEST(KdeColumnSampling, ProbabilitiesFollowColumnNormsAndValues) {
  Head by_norm = RandomHead(100, 2000, 16);
  for (std::size_t i = 0; i < std::size_t{12} * 20; ++i)
    by_norm.keys.numbers[i] *= 6;  // twenty heavy keys
  Head by_value = RandomHead(100, 2000, 19);
  for (std::size_t i = 0; i < std::size_t{20} * 20; ++i) by_value.values.numbers[i] *= 100;
  ColumnSamplingConfig config;
  config.samples = 200;
  config.method = DensityMethod::kExact;
  for (const Head& head : {by_norm, by_value}) {
    const Attended<ColumnSampling> run = Attend(head, config);
    const std::vector<double>& p = run.method->probabilities();
    double heavy = 0;
    for (std::size_t l = 0; l < 20; ++l) heavy += p[l];
    EXPECT_GT(heavy, 0.4);
  }
}

// Hashing on the normalizers and the column norms, with nothing exact.
TEST(KdeColumnSampling, EstimatedStagesKeepTheError) {
  Head head = RandomHead(100, 300, 22);
  head.queries = RandomRows(100, 3, 23, 0.9F);
  head.keys = RandomRows(300, 3, 24, 0.9F);
  ColumnSamplingConfig config;
  config.samples = 150;
  config.epsilon = 0.1;
  const double exact = MeanError(head, config);
  config.always_sample = true;
  const Attended<ColumnSampling> run = Attend(head, config);
  EXPECT_EQ(run.method->normalizer_costs().exact_queries, 0);
  EXPECT_EQ(run.method->column_norm_costs().exact_queries, 0);
  const double sampled = FrobeniusError(run.outputs, Softmax(head.inputs()).outputs);
  EXPECT_LT(sampled, 1.5 * exact);
}

TEST(KdeColumnSampling, TakesAdversarialData) {
  for (const auto& [name, rows] : AdversarialRows()) {
    Head head = {rows, rows, RandomRows(rows.count, 3, 25, 1.0F), 1.0F};
    ColumnSamplingConfig config;
    config.samples = rows.count;
    config.method = DensityMethod::kExact;
    const std::vector<double> truth = Softmax(head.inputs()).outputs;
    EXPECT_LT(oracle::RelativeError(Attend(head, config).outputs, truth), 5e-3) << name;
    config.samples = std::max<std::int64_t>(1, rows.count / 2);
    for (const float x : Attend(head, config).outputs) EXPECT_TRUE(std::isfinite(x)) << name;
  }
}

TEST(KdeColumnSampling, KeepsTheErrorOnATextRecogniser) {
  const data::TensorSet set = data::TextRecogniserHeads();
  const data::Layer& layer = set.layers[0];
  const std::int64_t stride = set.shape.key_row();
  const Rows queries = {layer.queries.data(), set.tokens, set.shape.key_dim, stride};
  const Rows keys = {layer.keys.data(), set.tokens, set.shape.key_dim, stride};
  const Rows values = {layer.values.data(), set.tokens, set.shape.value_dim, stride};
  std::vector<float> outputs(static_cast<std::size_t>(set.tokens * set.shape.value_dim));
  ColumnSamplingConfig config;
  config.samples = 512;
  auto made = ColumnSampling::Create({queries, keys, values, set.shape.scale}, config,
                                     {{outputs.data(), set.shape.value_dim}});
  ASSERT_TRUE(made.ok());
  Scratch scratch;
  while (!(*made)->Step(scratch)) {
  }
  Head dense = {{set.tokens, 15, {}}, {set.tokens, 15, {}}, {set.tokens, 15, {}}, set.shape.scale};
  for (std::int64_t i = 0; i < set.tokens; ++i) {
    const auto copy = [&](Rows from, OwnedRows& to) {
      to.numbers.insert(to.numbers.end(), from.row(i), from.row(i) + from.dim);
    };
    copy(queries, dense.queries);
    copy(keys, dense.keys);
    copy(values, dense.values);
  }
  EXPECT_LT(FrobeniusError(outputs, Softmax(dense.inputs()).outputs), 0.12);
}

TEST(KdeColumnSampling, TakesTheMemoryThatIsStated) {
#ifdef ATTND_SANITIZED
  GTEST_SKIP() << "a sanitizer brings its own allocator";
#else
  const Head head = RandomHead(3000, 20000, 60);
  std::vector<float> outputs(std::size_t{3000} * 20);
  ColumnSamplingConfig config;
  config.samples = 4000;
  Scratch scratch;
  const std::int64_t before = BytesInUse();
  auto made = ColumnSampling::Create(head.inputs(), config, {{outputs.data(), 20}, nullptr});
  ASSERT_TRUE(made.ok());
  const std::int64_t peak = PeakBytes(**made, scratch, before);
  const std::int64_t stated = ColumnSampling::Bytes({3000, 20000, 12, 20}, config);
  EXPECT_LE(peak, stated + (1 << 20));  // of which the scratch takes a part
  EXPECT_GE(peak, stated / 5);
#endif
}

TEST(KdeColumnSampling, RowsThatLeaveF32AreMarked) {
  Head values = RandomHead(5, 200, 63);
  std::fill(values.values.numbers.begin(), values.values.numbers.end(), 3e38F);
  Head scores = RandomHead(5, 200, 66);
  for (float& x : scores.queries.numbers) x *= 1e25F;
  for (float& x : scores.keys.numbers) x *= 1e25F;
  for (const Head& head : {values, scores}) {
    const Attended<ColumnSampling> run = Attend(head, {100});
    for (const float x : run.outputs) EXPECT_EQ(x, 0);
    for (const float x : run.log_normalizers) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(KdeColumnSampling, NamesWhatItRefuses) {
  const Head head = RandomHead(5, 6, 26);
  const auto message = [](const AttentionInputs& inputs, const ColumnSamplingConfig& config) {
    return std::string(ColumnSampling::Create(inputs, config, {}).status().message());
  };
  AttentionInputs inputs = head.inputs();
  EXPECT_EQ(message(inputs, {}), "samples is 0; it must be at least 1");
  EXPECT_EQ(message(inputs, {1, 0}), "epsilon is 0; it must be above 0 and at most 1");
  inputs.scale = -1;
  EXPECT_EQ(message(inputs, {1}), "scale is -1; it must be positive and finite");
  inputs = head.inputs();
  inputs.values.count = 5;
  EXPECT_EQ(message(inputs, {1}), "values are 5 rows; keys are 6");
  inputs.queries.dim = 3;
  inputs.values.count = 6;
  EXPECT_EQ(message(inputs, {1}), "queries have 3 numbers; keys have 12");
  EXPECT_EQ(message({}, {1}),
            "keys are 0 rows of 0 numbers, values have 0; each must be at least 1");
}

}  // namespace
}  // namespace attnd::engine::kde_test
