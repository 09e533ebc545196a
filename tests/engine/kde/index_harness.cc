#include "tests/engine/kde/index_harness.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::kde_test {
std::unique_ptr<const Engine> MakeKde(const LayerShape& shape, KdeConfig::Mode mode) {
  return MakeKde(shape, KdeConfig{.mode = mode});
}

std::unique_ptr<const Engine> MakeKde(const LayerShape& shape, const KdeConfig& config) {
  auto engine = MakeEngine({.shape = shape, .kind = config});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return std::move(engine).value();
}

Tokens ClusteredTokens(const LayerShape& shape, std::int64_t count, std::int64_t clusters,
                       std::uint32_t seed) {
  Tokens tokens = exact_test::RandomTokens(shape, count, seed);
  const std::vector<float> centres = RandomValues(clusters * shape.key_dim, seed + 1, 1.0F);
  const std::vector<float> follow =
      RandomValues(shape.key_dim * shape.value_dim, seed + 2,
                   1.0F / std::sqrt(static_cast<float>(shape.key_dim)));
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      float* key = tokens.keys.data() + t * shape.key_row() + head * shape.key_dim;
      float* value = tokens.values.data() + t * shape.value_row() + head * shape.value_dim;
      const std::int64_t cluster = (t * 7919 + head) % clusters;
      for (std::int64_t c = 0; c < shape.key_dim; ++c) {
        // Components of unlike deviations, as real keys have.
        const float deviation = c % 4 == 0 ? 1.0F : 0.3F;
        key[c] = centres[Size(cluster * shape.key_dim + c)] + deviation * key[c];
      }
      for (std::int64_t c = 0; c < shape.value_dim; ++c) {
        value[c] *= 0.5F;
        for (std::int64_t k = 0; k < shape.key_dim; ++k) {
          value[c] += key[k] * follow[Size(k * shape.value_dim + c)];
        }
      }
    }
  }
  return tokens;
}

std::vector<float> KeysAsQueries(const Tokens& tokens, std::int64_t step, float factor) {
  const LayerShape& shape = tokens.shape;
  std::vector<float> queries;
  for (std::int64_t t = 0; t < tokens.count; t += step) {
    for (std::int64_t head = 0; head < shape.query_heads; ++head) {
      const float* key =
          tokens.keys.data() + t * shape.key_row() + head / shape.group_size() * shape.key_dim;
      for (std::int64_t c = 0; c < shape.key_dim; ++c) queries.push_back(factor * key[c]);
    }
  }
  return queries;
}

Answers Answers::Slice(std::int64_t first, std::int64_t count, std::int64_t queries) const {
  return {exact.Slice(first, count, queries),           SliceRows(errors, first, count, queries),
          SliceRows(bounds, first, count, queries),     SliceRows(masses, first, count, queries),
          SliceRows(keys, first, count, queries),       SliceRows(paths, first, count, queries),
          SliceRows(calibrated, first, count, queries), SliceRows(audited, first, count, queries)};
}

bool Answers::operator==(const Answers& other) const {
  return SameAnswers(other) && SameBits(errors, other.errors) &&
         SameBits(calibrated, other.calibrated) && SameBits(audited, other.audited);
}

bool Answers::SameAnswers(const Answers& other) const {
  return exact == other.exact && SameBits(bounds, other.bounds) && SameBits(masses, other.masses) &&
         SameBits(keys, other.keys) && SameBits(paths, other.paths);
}

Answers Ask(const Engine& engine, const Snapshot& snapshot, const float* queries,
            std::int64_t count, const Asked& asked) {
  const exact_test::Asked exact_asked = {
      .causal = asked.causal, .first_cut = asked.first_cut, .top_k = asked.top_k};
  const auto rows = Size(count * engine.shape().query_heads);
  Answers answers = {.exact = exact_test::Unwritten(engine.shape(), count, exact_asked),
                     .errors = std::vector<float>(rows, -7.0F),
                     .bounds = std::vector<float>(2 * rows, -7.0F),
                     .masses = std::vector<float>(rows, -7.0F),
                     .keys = std::vector<std::int64_t>(rows, -7),
                     .paths = std::vector<std::uint8_t>(rows, 77),
                     .calibrated = std::vector<std::uint8_t>(rows, 77),
                     .audited = std::vector<float>(rows, -1.0F)};
  AnswerView view = exact_test::View(answers.exact, exact_asked);
  view.estimates = {.errors = answers.errors.data(),
                    .log_normalizer_bounds = answers.bounds.data(),
                    .exact_masses = answers.masses.data(),
                    .keys_evaluated = answers.keys.data(),
                    .paths = answers.paths.data(),
                    .calibrated = answers.calibrated.data(),
                    .audited_errors = answers.audited.data()};
  QueryGroup group = exact_test::Group(snapshot, queries, count, exact_asked);
  group.positions = asked.positions.empty() ? nullptr : asked.positions.data();
  group.accuracy = asked.accuracy;
  group.layer = asked.layer;
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(group, view);
  for (std::int64_t chain = plan->chains() - 1; chain >= 0; --chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return answers;
}

std::vector<double> UnitErrors(const Tokens& tokens, const std::vector<float>& queries,
                               const Answers& answers) {
  const LayerShape& shape = tokens.shape;
  const std::int64_t count = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  const oracle::Answers truth =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(count, tokens.count)});
  std::vector<double> errors;
  for (std::int64_t row = 0; row < count * shape.query_heads; ++row) {
    const std::int64_t head = row % shape.query_heads / shape.group_size();
    std::vector<double> mean(Size(shape.value_dim));
    double square = 0.0;
    double unmasked = 0.0;
    for (std::int64_t t = 0; t < tokens.count; ++t) {
      if (tokens.mask[Size(t)] == 0) continue;
      unmasked += 1.0;
      for (std::int64_t c = 0; c < shape.value_dim; ++c) {
        const double value = static_cast<double>(
            tokens.values[Size(t * shape.value_row() + head * shape.value_dim + c)]);
        mean[Size(c)] += value;
        square += value * value;
      }
    }
    double spread = square / unmasked;
    for (const double sum : mean) spread -= sum / unmasked * (sum / unmasked);
    double error = 0.0;
    for (std::int64_t c = 0; c < shape.value_dim; ++c) {
      const double off =
          static_cast<double>(answers.exact.outputs[Size(row * shape.value_dim + c)]) -
          truth.outputs[Size(row * shape.value_dim + c)];
      error += off * off;
    }
    errors.push_back(std::sqrt(error / spread));
  }
  return errors;
}

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp(rank, std::size_t{1}, values.size()) - 1];
}

}  // namespace attnd::engine::kde_test
