#include "engine/kde/index/row_audit.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/random.h"

namespace attnd::engine {
namespace {

constexpr std::uint64_t kTickets = StreamSeed(0, 0x6175646974);

// What is smaller is f32's rounding.
constexpr double kLeastDeviation = 1e-7;

constexpr double kMostChance = 0.25;
// About as many rows read keys at the speed of memory.
constexpr double kTogether = 12.0;

}  // namespace

std::uint64_t AuditTicket(const float* query, std::int64_t dim, std::int64_t position) {
  return XXH3_64bits_withSeed(query, static_cast<std::size_t>(dim) * sizeof(float),
                              RandomAt(kTickets, static_cast<std::uint64_t>(position)));
}

bool IsAudited(std::uint64_t ticket, double chance) { return ToUniform(ticket) < chance; }

double AuditChance(double answer_work, double audit_work, double share) {
  return audit_work > 0.0 ? std::min(share * answer_work / audit_work, kMostChance) : 0.0;
}

double TileChance(double chance, std::int64_t rows) {
  const auto count = static_cast<double>(rows);
  if (!(chance > 0.0) || count * kMostChance <= 1.0) return 1.0;
  return std::min(chance * count / std::min(count * kMostChance, kTogether), 1.0);
}

double AuditedError(const SoftmaxSums& answer, std::int64_t answer_row,
                    const SoftmaxSums& predicted, const SoftmaxSums& truth, std::int64_t audit_row,
                    std::int64_t value_dim) {
  const auto scale = [](const SoftmaxSums& sums, std::int64_t row, double max) {
    return std::exp(static_cast<double>(sums.max[row]) - max);
  };
  const auto max = static_cast<double>(
      std::max({answer.max[answer_row], predicted.max[audit_row], truth.max[audit_row]}));
  const double of_answer = scale(answer, answer_row, max);
  const double of_predicted = scale(predicted, audit_row, max);
  const double of_truth = scale(truth, audit_row, max);
  const auto sum = static_cast<double>(answer.sum[answer_row]);
  const double off = of_truth * static_cast<double>(truth.sum[audit_row]) -
                     of_predicted * static_cast<double>(predicted.sum[audit_row]);
  const double true_sum = of_answer * sum + off;
  if (!(true_sum > 0.0)) return std::nan("");
  const float* acc = answer.acc + answer_row * answer.padded_value_dim;
  const float* predicted_acc = predicted.acc + audit_row * predicted.padded_value_dim;
  const float* true_acc = truth.acc + audit_row * truth.padded_value_dim;
  double square = 0.0;
  for (std::int64_t c = 0; c < value_dim; ++c) {
    const double difference = of_truth * static_cast<double>(true_acc[c]) -
                              of_predicted * static_cast<double>(predicted_acc[c]);
    const double error = (difference - off * static_cast<double>(acc[c]) / sum) / true_sum;
    square += error * error;
  }
  return std::sqrt(square);
}

double RowDeviation(double deviation, double unread_share) {
  return std::sqrt((deviation + kLeastDeviation) * (unread_share + kLeastDeviation));
}

double StatedError(double deviation, double unread_share, const AuditedFactor& audited) {
  const double mean = RowDeviation(deviation, unread_share);
  if (audited.learned) return static_cast<double>(audited.factor) * mean;
  return std::max(deviation, mean);
}

}  // namespace attnd::engine
