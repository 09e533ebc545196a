#include "client/demo/estimate_job.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/demo/reference.h"
#include "client/session.h"

namespace attnd::demo {
namespace {

using Session = std::shared_ptr<client::SessionHandle>;

constexpr int kRounds = 9;

// Exact paths state 0.
constexpr double kRounding = 1e-5;

// `target_error`: null for an exact session.
absl::StatusOr<Session> Create(client::Client& client, const Dataset& data,
                               const double* target_error) {
  v1::SessionConfig config;
  v1::LayerGroup* group = config.add_layer_groups();
  group->set_kv_heads(static_cast<std::int32_t>(data.keys.heads));
  group->set_query_heads(static_cast<std::int32_t>(data.keys.heads));
  group->set_key_dim(static_cast<std::int32_t>(data.keys.dim));
  group->set_value_dim(static_cast<std::int32_t>(data.values.dim));
  group->set_scale(data.softmax_scale);
  if (target_error != nullptr) {
    group->mutable_kde()->set_mode(v1::KdeConfig::INDEX);
    group->mutable_kde()->mutable_accuracy()->set_target_error(*target_error);
  } else {
    group->mutable_exact();
  }
  absl::StatusOr<Session> session = client.CreateSession(config);
  if (!session.ok()) return session;
  const client::LayerTokens tokens = {0, data.keys.View(0, data.keys.rows),
                                      data.values.View(0, data.keys.rows), ""};
  const absl::Status appended = (*session)->Append(tokens).status();
  if (!appended.ok()) return appended;
  return session;
}

double Quantile(std::vector<double> numbers, double share) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[static_cast<std::size_t>(share * static_cast<double>(numbers.size() - 1))];
}

// Root mean square of ||v - mean v|| of each head.
std::vector<double> Spreads(const Rows& values) {
  std::vector<double> spreads;
  for (std::int64_t head = 0; head < values.heads; ++head) {
    double squares = 0;
    for (std::int64_t i = 0; i < values.dim; ++i) {
      double sum = 0;
      double sum_of_squares = 0;
      for (std::int64_t token = 0; token < values.rows; ++token) {
        const double v = double{values.row(token)[head * values.dim + i]};
        sum += v;
        sum_of_squares += v * v;
      }
      const auto count = static_cast<double>(values.rows);
      squares += sum_of_squares / count - (sum / count) * (sum / count);
    }
    spreads.push_back(std::sqrt(squares));
  }
  return spreads;
}

// The error of each row and head of `outputs`, the answers to all questions.
std::vector<double> Errors(const Dataset& data, const std::vector<float>& outputs) {
  const Reference reference(Kind::kSoftmax, data, double{data.softmax_scale});
  const std::vector<double> spreads = Spreads(data.values);
  const std::int64_t dim = data.values.dim;
  std::vector<double> errors;
  for (std::int64_t question = 0; question < data.questions.rows; ++question) {
    const std::vector<double> truth =
        reference.Answer(data.questions.row(question), data.keys.rows);
    for (std::int64_t head = 0; head < data.values.heads; ++head) {
      double squares = 0;
      for (std::int64_t i = head * dim; i < (head + 1) * dim; ++i) {
        const auto at = static_cast<std::size_t>(question * data.values.row_size() + i);
        const double difference = double{outputs[at]} - truth[static_cast<std::size_t>(i)];
        squares += difference * difference;
      }
      errors.push_back(std::sqrt(squares) / spreads[static_cast<std::size_t>(head)]);
    }
  }
  return errors;
}

absl::StatusOr<EstimateFigures> Ask(const Dataset& data, client::SessionHandle& exact,
                                    client::SessionHandle& kde) {
  std::vector<double> exact_ms;
  std::vector<double> kde_ms;
  v1::Answer answer;
  for (int round = 0; round < kRounds; ++round) {
    absl::Time start = absl::Now();
    if (const auto truth = exact.Attend(0, data.question_tensor); !truth.ok()) {
      return truth.status();
    }
    exact_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    client::AttendOptions options;
    options.answer.set_estimates(true);
    start = absl::Now();
    auto result = kde.Attend(0, data.question_tensor, options);
    if (!result.ok()) return result.status();
    kde_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    answer = std::move(result->answer);
  }
  const auto outputs = client::ToFloats(answer.outputs());
  const auto stated = client::ToFloats(answer.estimates().errors());
  if (!outputs.ok()) return outputs.status();
  if (!stated.ok()) return stated.status();
  const std::int64_t rows = data.questions.rows * data.keys.heads;
  if (static_cast<std::int64_t>(outputs->size()) != rows * data.values.dim ||
      static_cast<std::int64_t>(stated->size()) != rows ||
      answer.estimates().keys_evaluated_size() != rows) {
    return absl::InternalError(
        absl::StrCat("an answer with estimates of another size than ", rows, " rows"));
  }
  const std::vector<double> errors = Errors(data, *outputs);
  EstimateFigures figures;
  figures.queries = data.questions.rows;
  figures.median_error = Quantile(errors, 0.5);
  figures.p95_error = Quantile(errors, 0.95);
  figures.median_stated = Quantile({stated->begin(), stated->end()}, 0.5);
  figures.p95_stated = Quantile({stated->begin(), stated->end()}, 0.95);
  for (std::size_t row = 0; row < errors.size(); ++row) {
    figures.covered += errors[row] <= double{(*stated)[row]} + kRounding ? 1.0 : 0.0;
  }
  figures.covered /= static_cast<double>(rows);
  for (const std::int64_t keys : answer.estimates().keys_evaluated()) {
    figures.keys += static_cast<double>(keys);
  }
  figures.keys /= static_cast<double>(rows * data.keys.rows);
  figures.exact_ms = Quantile(exact_ms, 0.5);
  figures.kde_ms = Quantile(kde_ms, 0.5);
  return figures;
}

}  // namespace

absl::StatusOr<EstimateFigures> RunEstimates(client::Client& client, const Dataset& data,
                                             double target_error) {
  const auto exact = Create(client, data, nullptr);
  if (!exact.ok()) return exact.status();
  const auto kde = Create(client, data, &target_error);
  if (!kde.ok()) return kde.status();
  auto figures = Ask(data, **exact, **kde);
  for (const Session& session : {*exact, *kde}) {
    const absl::Status deleted = client.DeleteSession(session->id());
    if (figures.ok() && !deleted.ok()) return deleted;
  }
  return figures;
}

}  // namespace attnd::demo
