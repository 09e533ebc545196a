// The estimates of a kde answer in the making: where the engine writes them, which rows met their
// target, and what the metrics take of them.
//
// Not thread-safe as a whole; engine chains write disjoint rows of one view at the same time.
#ifndef ATTND_SERVER_ESTIMATES_H_
#define ATTND_SERVER_ESTIMATES_H_

#include <cstdint>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "engine/engine.h"

namespace attnd::server {

// Bytes of the estimates of one query row and head, as they are sent: 10 of a number of keys, two
// bounds, an error and a mass in F32, and three bytes.
inline constexpr std::int64_t kEstimateBytes = 10 + 4 * 4 + 3;

// What is kept of a row where a client does not ask, for the metrics.
inline constexpr std::int64_t kEstimateWorkBytes = 4 + 8 + 1 + 1;

// What is kept of a row for the metrics in any case: the error that an audit finds.
inline constexpr std::int64_t kAuditWorkBytes = 4;

class EstimateBuilder {
 public:
  // Lays out `estimates` for `queries` queries of `heads` heads; null: keeps to itself what the
  // metrics need. It outlives the builder.
  EstimateBuilder(std::int64_t queries, std::int64_t heads, v1::Estimates* estimates);
  EstimateBuilder(const EstimateBuilder&) = delete;
  EstimateBuilder& operator=(const EstimateBuilder&) = delete;

  // Where the estimates of query rows and heads from `first_row` on go.
  engine::EstimateView View(std::int64_t first_row) const;

  std::int64_t rows() const { return rows_; }

  // Says of each row whether its stated error is at most `target_error`; 0: there is no target.
  void Finish(double target_error);

 private:
  const std::int64_t rows_;
  v1::Estimates* const estimates_;
  engine::EstimateView view_;          // of row 0
  std::vector<float> audited_errors_;  // -1: not audited
  // Where they are not sent.
  std::vector<float> errors_;
  std::vector<std::int64_t> keys_evaluated_;
  std::vector<std::uint8_t> bytes_;  // of paths, then of calibrated
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_ESTIMATES_H_
