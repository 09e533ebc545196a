// Kernel density estimates on a data set: the same tokens in an exact session and in one that
// estimates, the same questions to both, and how far the estimates are off beside what they say of
// themselves.
//
// Not thread-safe.
#ifndef ATTND_CLIENT_DEMO_ESTIMATE_JOB_H_
#define ATTND_CLIENT_DEMO_ESTIMATE_JOB_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/demo/dataset.h"

namespace attnd::demo {

// Errors of rows are ||output - f64 reference||, relative to the values' spread, the root mean
// square of ||v - mean v||.
struct EstimateFigures {
  std::int64_t queries = 0;
  double median_error = 0;
  double p95_error = 0;
  double median_stated = 0;
  double p95_stated = 0;
  double covered = 0;   // share of rows whose error is at most the stated one, or f32's rounding
  double keys = 0;      // mean share of the context's keys that a row evaluated
  double exact_ms = 0;  // median time of asking all questions at once
  double kde_ms = 0;
};

// Creates both sessions, asks the data set's questions and deletes the sessions. The estimating one
// has mode INDEX, so that it estimates however short the context is, and aims at `target_error`.
absl::StatusOr<EstimateFigures> RunEstimates(client::Client& client, const Dataset& data,
                                             double target_error);

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_ESTIMATE_JOB_H_
