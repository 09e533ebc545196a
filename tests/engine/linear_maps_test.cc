// Every further feature map against its kernel in f64, written down without features where the map
// has one.
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/projection.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

using Row = std::vector<double>;

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The rows of an engine's projection, as data.
std::vector<Row> RowsOf(const Engine& engine) {
  const Projection& projection = *engine.feature_map()->projection();
  std::vector<Row> rows(static_cast<std::size_t>(projection.count()),
                        Row(static_cast<std::size_t>(projection.dim())));
  Scratch scratch;
  for (std::int64_t k = 0; k < projection.dim(); ++k) {
    std::vector<float> unit(static_cast<std::size_t>(4 * projection.dim()), 0.0F);
    unit[static_cast<std::size_t>(k)] = 1.0F;
    const float* column = projection.Project(unit.data(), 1, scratch);
    for (std::size_t j = 0; j < rows.size(); ++j) {
      rows[j][static_cast<std::size_t>(k)] = static_cast<double>(column[j]);
    }
  }
  return rows;
}

// Queries come times the scale: x' = sqrt(scale) x for both sides.
struct Scaled {
  Row q;
  Row k;
};
Scaled Split(const Row& query, const Row& key, double scale) {
  Scaled both{query, key};
  for (double& x : both.q) x /= std::sqrt(scale);
  for (double& x : both.k) x *= std::sqrt(scale);
  return both;
}

oracle::Similarity SimilarityOf(const Engine& engine, const FeatureMapConfig& config) {
  const auto scale = static_cast<double>(engine.shape().scale);
  if (config.name == "taylor") {
    return [](const Row& q, const Row& k, std::int64_t, std::int64_t) {
      const double s = Dot(q, k);
      return 1 + s + s * s / 2;
    };
  }
  if (config.name == "cosformer") {
    return [m = static_cast<double>(config.horizon)](const Row& q, const Row& k, std::int64_t i,
                                                     std::int64_t j) {
      double sum = 0;
      for (std::size_t a = 0; a < q.size(); ++a) sum += std::max(q[a], 0.0) * std::max(k[a], 0.0);
      return sum * std::cos(std::numbers::pi * static_cast<double>(i - j) / (2 * m));
    };
  }
  if (config.name == "dpfp") {
    return [nu = static_cast<std::size_t>(config.nu)](const Row& q, const Row& k, std::int64_t,
                                                      std::int64_t) {
      const auto halves = [](const Row& x) {
        Row u;
        for (const double v : x) u.push_back(std::max(v, 0.0));
        for (const double v : x) u.push_back(std::max(-v, 0.0));
        return u;
      };
      const Row u = halves(q);
      const Row v = halves(k);
      double sum = 0;
      for (std::size_t j = 1; j <= nu; ++j) {
        for (std::size_t i = 0; i < u.size(); ++i) {
          const std::size_t r = (i + u.size() - j) % u.size();
          sum += u[i] * u[r] * v[i] * v[r];
        }
      }
      return sum;
    };
  }
  const std::vector<Row> w = RowsOf(engine);
  const auto m = static_cast<double>(w.size());
  if (config.name == "random_fourier") {
    return [w, m, scale](const Row& query, const Row& key, std::int64_t, std::int64_t) {
      const auto [q, k] = Split(query, key, scale);
      double sum = 0;
      for (const Row& row : w) sum += std::cos(Dot(row, q) - Dot(row, k));
      return sum / m * std::exp((Dot(q, q) + Dot(k, k)) / 2);
    };
  }
  if (config.name == "favor_hyperbolic") {
    return [w, m, scale](const Row& query, const Row& key, std::int64_t, std::int64_t) {
      const auto [q, k] = Split(query, key, scale);
      double sum = 0;
      for (const Row& row : w) sum += std::cosh(Dot(row, q) + Dot(row, k));
      return sum / m * std::exp(-(Dot(q, q) + Dot(k, k)) / 2);
    };
  }
  // favor_positive is favor_sharp with A = 0 and psi = 1.
  return [w, m, scale, a = static_cast<double>(config.sharpness), psi = config.key_scales](
             const Row& query, const Row& key, std::int64_t, std::int64_t) {
    auto [q, k] = Split(query, key, scale);
    for (std::size_t i = 0; i < psi.size(); ++i) {
      q[i] *= static_cast<double>(psi[i]);
      k[i] /= static_cast<double>(psi[i]);
    }
    double sum = 0;
    for (const Row& row : w) {
      sum += std::exp(2 * a * Dot(row, row) + std::sqrt(1 - 4 * a) * (Dot(row, q) + Dot(row, k)));
    }
    const double d = std::pow(1 - 4 * a, static_cast<double>(q.size()) / 2);
    return d * sum / m * std::exp(-(Dot(q, q) + Dot(k, k)) / 2);
  };
}

FeatureMapConfig Map(const std::string& name) {
  FeatureMapConfig config;
  config.name = name;
  return config;
}

struct MapCase {
  std::string name;
  FeatureMapConfig config;
  double tolerance = 1e-6;
};

void PrintTo(const MapCase& c, std::ostream* os) { *os << c.name; }

std::vector<MapCase> Cases() {
  std::vector<MapCase> cases;
  cases.push_back({"taylor", Map("taylor"), 2e-6});
  cases.push_back({"cosformer", Map("cosformer"), 2e-6});
  cases.back().config.horizon = 100;
  cases.push_back({"dpfp1", Map("dpfp"), 2e-6});
  cases.back().config.nu = 1;
  cases.push_back({"dpfp3", Map("dpfp"), 2e-6});
  cases.back().config.nu = 3;
  for (const std::string name : {"favor_positive", "favor_hyperbolic", "random_fourier"}) {
    cases.push_back({name, Map(name), 1e-5});
    cases.back().config.features = 40;
    cases.back().config.seed = 7;
  }
  cases.push_back({"favor_default_features", Map("favor_positive"), 1e-5});
  cases.push_back({"favor_sharp", Map("favor_sharp"), 1e-5});
  cases.back().config.features = 64;
  cases.back().config.sharpness = -0.3F;
  return cases;
}

class LinearMaps : public testing::TestWithParam<MapCase> {
 protected:
  LinearConfig Linear(bool normalized) const {
    LinearConfig config;
    config.feature_map = GetParam().config;
    if (config.feature_map.name == "favor_sharp") {
      for (std::int64_t i = 0; i < shape_.key_dim; ++i) {
        config.feature_map.key_scales.push_back(0.5F + 0.1F * static_cast<float>(i));
      }
    }
    config.normalized = normalized;
    config.guard_epsilon = 1e-20F;
    return config;
  }

  std::vector<std::int64_t> Positions(std::int64_t count, std::int64_t first) const {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < count; ++i) positions.push_back(first + 3 * i);
    return positions;
  }

  LayerShape shape_ = {2, 4, 12, 9, 0.3F};
};

TEST_P(LinearMaps, AgreesWithItsKernel) {
  Stream stream = MakeStream(shape_, 210, 1);
  for (std::int64_t token = 64; token < 140; token += 3) stream.Mask(token);
  for (const bool normalized : {true, false}) {
    const LinearConfig config = Linear(normalized);
    const auto engine = MakeLinear(shape_, config);
    const oracle::Similarity similarity = SimilarityOf(*engine, config.feature_map);
    const std::vector<float> rows = NormalNumbers(5 * shape_.query_row(), 3);
    for (const std::int64_t position : {1, 64, 65, 130, 210}) {
      SCOPED_TRACE(position);
      const std::vector<std::int64_t> at = Positions(5, position);
      const Answers answers =
          Attend(*engine, At(*engine, stream, position), rows.data(), 5, at.data());
      const oracle::Answers truth = oracle::BySimilarity(
          stream.context(position), {rows.data(), oracle::AllVisible(5, position), at}, similarity,
          normalized);
      std::vector<float> denominators;
      for (std::size_t i = 0; i < answers.denominators.size(); ++i) {
        denominators.push_back(std::ldexp(answers.denominators[i], answers.exponents[i]));
        const bool negative = normalized && truth.denominators[i] <= 0;
        EXPECT_EQ(answers.flags[i],
                  static_cast<int>(negative ? RowFlag::kNonPositive : RowFlag::kOk));
      }
      EXPECT_LT(RelativeError(denominators, truth.denominators), GetParam().tolerance);
      // A denominator that is not positive has no output.
      bool all_positive = true;
      for (const double d : truth.denominators) all_positive = all_positive && d > 0;
      if (normalized && !all_positive) continue;
      EXPECT_LT(RelativeError(answers.outputs, truth.outputs), GetParam().tolerance);
    }
  }
}

TEST_P(LinearMaps, StepsHaveTheBitsOfAttendsHoweverBlocksWereSealed) {
  Stream stream = MakeStream(shape_, 330, 5);
  for (std::int64_t token = 2; token < 330; token += 7) stream.Mask(token);
  // Lengths of keys that differ by orders of magnitude, so that running scales move.
  for (std::int64_t token = 0; token < 330; ++token) {
    const float factor = token % 90 == 80 ? 9.0F : 0.3F;
    for (std::int64_t i = 0; i < shape_.key_row(); ++i) {
      stream.keys[static_cast<std::size_t>(token * shape_.key_row() + i)] *= factor;
    }
  }
  const auto engine = MakeLinear(shape_, Linear(true));
  const std::vector<float> rows = NormalNumbers(70 * shape_.query_row(), 6);
  const Answers steps = AttendCausally(*engine, At(*engine, stream, 320), rows.data(), 64, 1);
  for (std::int64_t query = 0; query < 64; query += 5) {
    const std::int64_t position = 257 + query;
    const std::int64_t at = position - 1;
    for (const Cutting& cutting :
         {Cutting{}, Cutting{{1}, true, true}, Cutting{{2, 1}, false, true}}) {
      const Answers one = Attend(*engine, At(*engine, stream, position, cutting),
                                 rows.data() + query * shape_.query_row(), 1, &at);
      const std::int64_t width = shape_.output_row();
      for (std::int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(one.outputs[static_cast<std::size_t>(i)],
                  steps.outputs[static_cast<std::size_t>(query * width + i)])
            << position;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearMaps, testing::ValuesIn(Cases()),
                         [](const auto& instance) { return instance.param.name; });

// Keys whose features leave f32 by hundreds of orders of magnitude.
TEST(LinearScales, LongRowsNeitherOverflowNorVanish) {
  const LayerShape shape = {1, 1, 8, 4, 1.0F};
  for (const std::string name : {"favor_positive", "favor_hyperbolic"}) {
    LinearConfig config;
    config.feature_map.name = name;
    config.feature_map.features = 64;
    config.guard_epsilon = 1e-30F;
    const auto engine = MakeLinear(shape, config);
    const oracle::Similarity similarity = SimilarityOf(*engine, config.feature_map);
    for (const float length : {0.0F, 1.0F, 3.0F}) {
      Stream stream = MakeStream(shape, 150, 9);
      for (float& x : stream.keys) x *= length;
      std::vector<float> rows = NormalNumbers(3 * shape.query_row(), 10);
      for (float& x : rows) x *= 3.0F;
      const Answers answers = Attend(*engine, At(*engine, stream, 150), rows.data(), 3);
      const oracle::Answers truth = oracle::BySimilarity(
          stream.context(150), {rows.data(), oracle::AllVisible(3, 150)}, similarity, true);
      EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{0, 0, 0})) << name << length;
      EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 1e-4) << name << length;
    }
  }
}

// A row that no exponent can hold is an error, not a silent zero.
TEST(LinearScales, AbsurdRowsAreOverflows) {
  const LayerShape shape = {1, 1, 4, 1, 1.0F};
  LinearConfig config;
  config.feature_map.name = "favor_positive";
  const auto engine = MakeLinear(shape, config);
  Stream stream = MakeStream(shape, 3, 11);
  stream.keys[5] = 1e30F;
  const Snapshot snapshot = At(*engine, stream, 3);
  Scratch scratch;
  EXPECT_EQ(engine->CheckTail(*snapshot.sealed, snapshot.view(), scratch).code(),
            absl::StatusCode::kOutOfRange);
  std::vector<float> query = {1e30F, 0, 0, 0};
  const Answers answers =
      Attend(*engine, At(*engine, MakeStream(shape, 3, 12), 3), query.data(), 1);
  EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(RowFlag::kOverflow));
  EXPECT_EQ(answers.outputs[0], 0.0F);
}

// Estimates of exp(q . k) are unbiased: their mean over seeds approaches it.
TEST(LinearRandomFeatures, AreUnbiased) {
  const LayerShape shape = {1, 1, 8, 1, 0.5F};
  Stream stream = MakeStream(shape, 1, 13);
  stream.values[0] = 1.0F;
  for (float& x : stream.keys) x *= 0.5F;
  const std::vector<float> query = NormalNumbers(8, 14, 0.5F);
  double score = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    score += 0.5 * static_cast<double>(query[i]) * static_cast<double>(stream.keys[i]);
  }
  for (const std::string name :
       {"favor_positive", "favor_hyperbolic", "favor_sharp", "random_fourier"}) {
    double sum = 0;
    double squares = 0;
    constexpr int kSeeds = 300;
    for (int seed = 0; seed < kSeeds; ++seed) {
      LinearConfig config;
      config.normalized = false;
      config.feature_map.name = name;
      config.feature_map.features = 64;
      config.feature_map.seed = static_cast<std::uint64_t>(seed);
      if (name == "favor_sharp") config.feature_map.sharpness = -0.1F;
      const auto engine = MakeLinear(shape, config);
      const double estimate =
          static_cast<double>(Attend(*engine, At(*engine, stream, 1), query.data(), 1).outputs[0]);
      sum += estimate;
      squares += estimate * estimate;
    }
    const double mean = sum / kSeeds;
    const double deviation = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
    EXPECT_NEAR(mean, std::exp(score), 4 * deviation) << name;
    EXPECT_LT(deviation, 0.1 * std::exp(score)) << name;
  }
}

TEST(LinearProjection, IsWhatTheGeneratorSaysForEver) {
  const Projection projection(1, 5, 3);
  const Digest digest = projection.digest();
  // A session's features depend on it.
  EXPECT_EQ(absl::StrFormat("%016x%016x", digest.high, digest.low),
            "87e3de9f833a36d3880d11dcc7054fb9");
  EXPECT_NE(digest, Projection(2, 5, 3).digest());
}

TEST(LinearProjection, RowsOfABlockAreOrthogonal) {
  LinearConfig config;
  config.feature_map.name = "favor_positive";
  config.feature_map.features = 12;
  const auto engine = MakeLinear({1, 1, 8, 1, 1.0F}, config);
  const std::vector<Row> w = RowsOf(*engine);
  for (std::size_t i = 0; i < w.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double cosine = Dot(w[i], w[j]) / std::sqrt(Dot(w[i], w[i]) * Dot(w[j], w[j]));
      if (i / 8 == j / 8) {
        EXPECT_NEAR(cosine, 0, 1e-6) << i << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace attnd::engine::linear_test
