// Partial answers: those over two contexts merge to the answer over both, where there are any.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/attend_fixture.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

TEST_F(Attend, PartialsOverTwoContextsMergeToTheWhole) {
  v1::AnswerOptions options;
  options.set_partials(true);
  const std::vector<std::pair<std::string, v1::LayerGroup>> groups = {
      {"exact", ExactGroup(kShape)},
      {"linear", LinearGroup(kShape)},
      {"favor", LinearGroup(kShape, v1::FAVOR_POSITIVE)}};
  for (const auto& [name, group] : groups) {
    const bool exact = name == "exact";
    const v1::SessionConfig config = ConfigOf({group});
    const TestSession whole(server_.stub(), name, config);
    const TestSession left(server_.stub(), name + "-left", config);
    const TestSession right(server_.stub(), name + "-right", config);
    ASSERT_TRUE(Succeeded(whole.Append(tokens_, 0, 300).status));
    ASSERT_TRUE(Succeeded(left.Append(tokens_, 0, 110).status));
    v1::AppendRequest rest = right.AppendOf(tokens_, 110, 190);
    rest.mutable_tokens(0)->set_position(0);
    ASSERT_TRUE(Succeeded(right.Append(rest).status));

    const v1::Answer want = whole.Attend(whole.AttendOf(kShape, queries_, 0, 20))->answer();
    const v1::Answer a = left.Attend(left.AttendOf(kShape, queries_, 0, 20, options))->answer();
    const v1::Answer b = right.Attend(right.AttendOf(kShape, queries_, 0, 20, options))->answer();
    std::vector<double> merged;
    if (exact) {
      const std::vector<float> oa = Floats(a.outputs());
      const std::vector<float> ob = Floats(b.outputs());
      const std::vector<float> za = Floats(a.partial().log_normalizers());
      const std::vector<float> zb = Floats(b.partial().log_normalizers());
      for (std::size_t row = 0; row < 120; ++row) {
        const double most = std::max(za[row], zb[row]);
        const double wa = std::exp(static_cast<double>(za[row]) - most);
        const double wb = std::exp(static_cast<double>(zb[row]) - most);
        for (std::size_t j = 0; j < 5; ++j) {
          merged.push_back((wa * static_cast<double>(oa[row * 5 + j]) +
                            wb * static_cast<double>(ob[row * 5 + j])) /
                           (wa + wb));
        }
      }
    } else {
      ASSERT_EQ(a.partial().exponents_size(), name == "favor" ? 120 : 1);
      if (name == "linear") {
        EXPECT_EQ(a.partial().exponents(0), 0);
      }
      const auto power = [](const v1::Answer& answer, std::size_t row) {
        const int at = answer.partial().exponents_size() == 1 ? 0 : static_cast<int>(row);
        return std::ldexp(1.0, answer.partial().exponents(at));
      };
      const std::vector<float> na = Floats(a.partial().numerators());
      const std::vector<float> nb = Floats(b.partial().numerators());
      const std::vector<float> da = Floats(a.partial().denominators());
      const std::vector<float> db = Floats(b.partial().denominators());
      for (std::size_t i = 0; i < 600; ++i) {
        const double pa = power(a, i / 5);
        const double pb = power(b, i / 5);
        merged.push_back(
            (pa * static_cast<double>(na[i]) + pb * static_cast<double>(nb[i])) /
            (pa * static_cast<double>(da[i / 5]) + pb * static_cast<double>(db[i / 5])));
      }
    }
    EXPECT_LT(RelativeError(Floats(want.outputs()), merged), 2e-6) << name;
  }
}

TEST_F(Attend, EfficientAttentionHasNeitherDenominatorsNorPartials) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape, v1::EFFICIENT)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 10).status));
  v1::AnswerOptions denominators;
  denominators.set_denominators(true);
  EXPECT_TRUE(
      FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 2, denominators)).status,
                 StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  v1::AnswerOptions partials;
  partials.set_partials(true);
  EXPECT_TRUE(FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 2, partials)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_MERGEABLE));
  EXPECT_TRUE(FailedWith(session.Step(session.StepOf(tokens_, queries_, 10, 2, partials)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_MERGEABLE));
  EXPECT_EQ(session.Get()->position(), 10);
  const v1::EngineFacts facts = session.Get()->engine_facts(0);
  EXPECT_EQ(facts.engine(), "linear");
  EXPECT_EQ(facts.feature_dim(), kShape.key_dim);
  EXPECT_EQ(facts.bytes_per_token(), 0);
}

}  // namespace
}  // namespace attnd::e2e
