// An Answer in the making: what was asked for, how large it will be, where the engine writes it,
// and its conversion to the wire type.
//
// Not thread-safe as a whole; engine chains write disjoint rows of one view at the same time.
#ifndef ATTND_SERVER_ANSWER_H_
#define ATTND_SERVER_ANSWER_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "engine/aligned_buffer.h"
#include "engine/engine.h"
#include "engine/tensor.h"
#include "server/estimates.h"
#include "server/metrics.h"
#include "server/session_config.h"
#include "server/tensors.h"

namespace attnd::server {

// Checked AnswerOptions and Accuracy for one layer.
struct AnswerSpec {
  engine::LayerShape shape;
  EngineKind engine = EngineKind::kExact;
  engine::DataType output_type = engine::DataType::kF32;
  bool flags = false;
  bool denominators = false;
  bool partials = false;
  bool scaled = false;  // denominators and partials come with exponents
  std::int64_t top_k = 0;
  bool approximate = false;   // the layer estimates
  bool estimates = false;     // and tells of it
  engine::Accuracy accuracy;  // in force
};

// `accuracy` is the request's; null: it has none. INVALID_FIELD for values out of range,
// UNSUPPORTED for what the engine does not offer.
absl::StatusOr<AnswerSpec> PlanAnswer(const v1::AnswerOptions& options, const LayerGroup& group,
                                      const v1::Accuracy* accuracy = nullptr);

// Bytes of the answer to `queries` queries, to within a few dozen; never less than what is sent.
std::int64_t AnswerBytes(const AnswerSpec& spec, std::int64_t queries);

// Memory that answering takes besides the request: the answer, its F32 form and the queries' where
// the wire types are narrower, estimates that are not sent, and the engine's plan
// (Engine::PlanBytes).
std::int64_t WorkBytes(const AnswerSpec& spec, const RowsView& queries, std::int64_t plan_bytes);

// RESPONSE_TOO_LARGE with the largest count of queries whose answer fits.
absl::Status CheckAnswerFits(const AnswerSpec& spec, std::int64_t queries,
                             std::int64_t max_response_bytes);

class AnswerBuilder {
 public:
  // Lays out `answer` for `queries` queries. It outlives the builder.
  AnswerBuilder(const AnswerSpec& spec, std::int64_t queries, v1::Answer& answer);

  // Where the answers of queries from `first` on go.
  engine::AnswerView View(std::int64_t first);

  // Converts the outputs to the type asked for, and says which rows met their target.
  // OUTPUT_OVERFLOW where a finite output does not fit.
  absl::Status Finish();

  // Counts what became of the rows of a layer that estimates; takes no memory.
  void Count(Metrics& metrics) const {
    if (estimates_) metrics.AddEstimates(estimates_->View(0), estimates_->rows());
  }

 private:
  const AnswerSpec spec_;
  const std::int64_t queries_;
  v1::Answer& answer_;
  engine::AlignedBuffer<float> wide_outputs_;  // when the wire type is not F32
  engine::AnswerView view_;                    // of query 0, without estimates
  std::optional<EstimateBuilder> estimates_;   // where the layer estimates
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_ANSWER_H_
