// What `attend` and `step` ask of a kde layer, and what they print of its estimates.
//
// Pure functions, apart from the one that writes a file.
#ifndef ATTND_CLIENT_ATTNCTL_ESTIMATES_H_
#define ATTND_CLIENT_ATTNCTL_ESTIMATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "google/protobuf/struct.pb.h"

namespace attnd::attnctl {

struct EstimateFlags {
  double target_error = 0;    // 0: the session's
  std::int64_t max_keys = 0;  // likewise
  bool print = false;
  // File for the stated errors; empty: none.
  std::string errors;
};

// Nothing where no flag is given, so that layers without estimates take the request.
std::optional<v1::Accuracy> AccuracyOf(const EstimateFlags& flags);
bool WantsEstimates(const EstimateFlags& flags);

// The estimates of all rows, each query of each head one.
struct EstimateSummary {
  std::int64_t rows = 0;
  // Of the stated errors: half, and 95 % of the rows, have one that is no larger.
  double median_error = 0;
  double high_error = 0;
  // Shares of rows.
  double target_met = 0;
  double calibrated = 0;
  double mean_keys = 0;
  std::int64_t most_keys = 0;
  // Rows by the contract's name of their path, without what all names begin with, in lower case.
  std::map<std::string, std::int64_t> paths;
};

// INVALID_ARGUMENT where the parts of the message disagree about the number of rows.
absl::StatusOr<EstimateSummary> Summarize(const v1::Estimates& estimates);

// Some lines, each with an end.
std::string Describe(const EstimateSummary& summary);
google::protobuf::Struct ToJson(const EstimateSummary& summary);

// Writes the stated errors, (n, query heads), where the flags want a file.
absl::Status WriteErrors(const EstimateFlags& flags, const v1::Estimates& estimates);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_ESTIMATES_H_
