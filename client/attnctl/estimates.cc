#include "client/attnctl/estimates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/npy.h"
#include "client/tensor.h"

namespace attnd::attnctl {
namespace {

// The smallest of the ascending numbers that `share` of them do not exceed.
double Quantile(const std::vector<float>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return double{sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1]};
}

double Share(std::int64_t part, std::int64_t rows) {
  return rows == 0 ? 0 : static_cast<double>(part) / static_cast<double>(rows);
}

std::string PathName(char path) {
  constexpr std::size_t kPrefix = sizeof("ANSWER_PATH_") - 1;
  if (!v1::AnswerPath_IsValid(path)) return absl::StrCat("path ", static_cast<int>(path));
  std::string name = v1::AnswerPath_Name(static_cast<v1::AnswerPath>(path)).substr(kPrefix);
  absl::AsciiStrToLower(&name);
  return name;
}

}  // namespace

std::optional<v1::Accuracy> AccuracyOf(const EstimateFlags& flags) {
  if (flags.target_error == 0 && flags.max_keys == 0) return std::nullopt;
  v1::Accuracy accuracy;
  accuracy.set_target_error(flags.target_error);
  accuracy.set_max_keys(flags.max_keys);
  return accuracy;
}

bool WantsEstimates(const EstimateFlags& flags) { return flags.print || !flags.errors.empty(); }

absl::StatusOr<EstimateSummary> Summarize(const v1::Estimates& estimates) {
  auto errors = client::ToFloats(estimates.errors());
  if (!errors.ok()) return errors.status();
  const std::size_t rows = errors->size();
  if (estimates.paths().size() != rows || estimates.target_met().size() != rows ||
      estimates.calibrated().size() != rows ||
      static_cast<std::size_t>(estimates.keys_evaluated_size()) != rows) {
    return absl::InvalidArgumentError("estimates: their parts are not of the same length");
  }
  EstimateSummary summary;
  summary.rows = std::ssize(*errors);
  std::sort(errors->begin(), errors->end());
  summary.median_error = Quantile(*errors, 0.5);
  summary.high_error = Quantile(*errors, 0.95);
  const auto share = [&](const std::string& bytes) {
    return Share(std::count_if(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; }),
                 summary.rows);
  };
  summary.target_met = share(estimates.target_met());
  summary.calibrated = share(estimates.calibrated());
  double keys = 0;
  for (const std::int64_t count : estimates.keys_evaluated()) {
    keys += static_cast<double>(count);
    summary.most_keys = std::max(summary.most_keys, count);
  }
  if (rows > 0) summary.mean_keys = keys / static_cast<double>(rows);
  for (const char path : estimates.paths()) ++summary.paths[PathName(path)];
  return summary;
}

std::string Describe(const EstimateSummary& summary) {
  const std::string paths =
      absl::StrJoin(summary.paths, ", ", [](std::string* text, const auto& entry) {
        absl::StrAppend(text, entry.first, " ", entry.second);
      });
  return absl::StrFormat(
      "  stated error    median %.3g, 95th percentile %.3g (%.0f %% calibrated)\n"
      "  target met      %.1f %% of %d rows\n"
      "  keys evaluated  %.0f per row, at most %d\n"
      "  paths           %s\n",
      summary.median_error, summary.high_error, 100 * summary.calibrated, 100 * summary.target_met,
      summary.rows, summary.mean_keys, summary.most_keys, paths);
}

google::protobuf::Struct ToJson(const EstimateSummary& summary) {
  google::protobuf::Struct json;
  auto& fields = *json.mutable_fields();
  // JSON has no infinity.
  const auto error = [&](const char* name, double value) {
    if (std::isfinite(value)) {
      fields[name].set_number_value(value);
    } else {
      fields[name].set_null_value(google::protobuf::NULL_VALUE);
    }
  };
  error("medianStatedError", summary.median_error);
  error("p95StatedError", summary.high_error);
  fields["rows"].set_number_value(static_cast<double>(summary.rows));
  fields["targetMet"].set_number_value(summary.target_met);
  fields["calibrated"].set_number_value(summary.calibrated);
  fields["meanKeysEvaluated"].set_number_value(summary.mean_keys);
  fields["mostKeysEvaluated"].set_number_value(static_cast<double>(summary.most_keys));
  auto& paths = *fields["paths"].mutable_struct_value()->mutable_fields();
  for (const auto& [name, rows] : summary.paths) {
    paths[name].set_number_value(static_cast<double>(rows));
  }
  return json;
}

absl::Status WriteErrors(const EstimateFlags& flags, const v1::Estimates& estimates) {
  if (flags.errors.empty()) return absl::OkStatus();
  return client::WriteNpyFile(flags.errors, client::View(estimates.errors()));
}

}  // namespace attnd::attnctl
