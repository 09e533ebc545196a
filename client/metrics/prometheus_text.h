// Prometheus' text exposition format, version 0.0.4, as far as a reader of samples needs it
// (prometheus.io/docs/instrumenting/exposition_formats), and quantiles of its histograms.
//
// Pure functions, thread-safe.
#ifndef ATTND_CLIENT_METRICS_PROMETHEUS_TEXT_H_
#define ATTND_CLIENT_METRICS_PROMETHEUS_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd::client {

struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// All samples of a page, in order. Comments and timestamps are left out. INVALID_ARGUMENT names the
// line that is malformed.
absl::StatusOr<std::vector<MetricSample>> ParsePrometheusText(const std::string& page);

// Counts of a histogram: upper bound of a bucket (the last is +inf) to the number of observations
// not above it.
using CumulativeBuckets = std::map<double, double>;

// The histogram `name` summed over all series that carry every label of `labels`. Empty if there is
// none.
CumulativeBuckets HistogramOf(const std::vector<MetricSample>& samples, const std::string& name,
                              const std::map<std::string, std::string>& labels);

// What was observed after `before` was read.
CumulativeBuckets Since(const CumulativeBuckets& before, const CumulativeBuckets& after);

double Count(const CumulativeBuckets& buckets);

// The q-quantile, 0 <= q <= 1, by linear interpolation inside its bucket as PromQL's
// histogram_quantile does it: the first bucket begins at 0, and what lies in the +inf bucket counts
// as the largest finite bound. NaN if nothing was observed.
double Quantile(const CumulativeBuckets& buckets, double q);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_METRICS_PROMETHEUS_TEXT_H_
