// How well stated errors hold after they are calibrated: draws of queries, of which the first ones
// calibrate a fresh index and the next ones are compared with the truth.
#ifndef ATTND_TESTS_ENGINE_KDE_AUDIT_DRAWS_H_
#define ATTND_TESTS_ENGINE_KDE_AUDIT_DRAWS_H_

#include <cstdint>
#include <vector>

#include "tests/engine/kde/index_harness.h"

namespace attnd::engine::kde_test {

struct AuditCase {
  Tokens tokens;
  std::vector<float> queries;
  std::vector<std::int64_t> positions = {};  // empty: not given
  Accuracy accuracy = {};
  AuditShares audits = {};
};

// Of one kv-head, over all draws; only rows that the index answered.
struct DrawnHead {
  double mean_coverage = 0.0;
  double low_coverage = 0.0;  // 5th percentile of the draws'
  double median_bar = 0.0;
  double error_95 = 0.0;          // 95 % quantile of true errors
  double uncalibrated = 0.0;      // coverage of what is stated before the first audit
  std::int64_t most_queries = 0;  // until calibrated, of any draw
};

// Asks, of a shuffled list, groups of 128 queries until all heads say that they are calibrated, and
// then 1,000 more; `draws` times. Left out are heads with fewer than 100 rows to judge in a draw,
// and those that read nearly everything of nearly all rows; others that do not get calibrated fail
// the test.
std::vector<DrawnHead> Draw(const AuditCase& audit_case, int draws);

}  // namespace attnd::engine::kde_test

#endif  // ATTND_TESTS_ENGINE_KDE_AUDIT_DRAWS_H_
