#include "server/answer.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/simd/convert.h"
#include "server/accuracy.h"
#include "server/error.h"
#include "server/tensors.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMaxTopK = 64;
// Tags, lengths and shapes of all tensors of an answer, and the message around it.
constexpr std::int64_t kOverheadBytes = 512;
// A position on the wire is at most ten bytes.
constexpr std::int64_t kPositionBytes = 10;
// An exponent at most five.
constexpr std::int64_t kExponentBytes = 5;

// Bytes per query.
std::int64_t QueryBytes(const AnswerSpec& spec) {
  const std::int64_t heads = spec.shape.query_heads;
  std::int64_t bytes = spec.shape.output_row() * engine::ElementBytes(spec.output_type);
  if (spec.flags) bytes += heads;
  const std::int64_t exponent = spec.scaled ? kExponentBytes : 0;
  if (spec.denominators) bytes += heads * (4 + exponent);
  if (spec.partials) {
    bytes += heads * (4 + exponent);
    if (spec.engine == EngineKind::kLinear) bytes += spec.shape.output_row() * 4;
  }
  if (spec.estimates) bytes += heads * kEstimateBytes;
  return bytes + heads * spec.top_k * (kPositionBytes + 4);
}

std::int32_t* MakeExponents(google::protobuf::RepeatedField<std::int32_t>& exponents,
                            std::int64_t count) {
  exponents.Resize(static_cast<int>(count), 0);
  return exponents.mutable_data();
}

template <typename T>
T* Offset(T* pointer, std::int64_t count) {
  return pointer == nullptr ? nullptr : pointer + count;
}

// What is asked of a layer that estimates; UNSUPPORTED where another one is asked for it.
absl::Status PlanEstimates(const v1::AnswerOptions& options, const LayerGroup& group,
                           const v1::Accuracy* accuracy, AnswerSpec& spec) {
  spec.approximate = group.engine->approximate();
  spec.estimates = options.estimates();
  if (!spec.approximate && (spec.estimates || accuracy != nullptr)) {
    return Error(v1::UNSUPPORTED,
                 absl::StrCat(spec.estimates ? "options.estimates" : "accuracy",
                              " is set; the layer's engine is ", group.engine->name(),
                              ", which does not estimate: only kde does"));
  }
  spec.accuracy = group.accuracy;
  if (accuracy == nullptr) return absl::OkStatus();
  absl::StatusOr<engine::Accuracy> asked = CheckAccuracy(*accuracy, "accuracy");
  if (!asked.ok()) return asked.status();
  spec.accuracy = InForce(*asked, group.accuracy);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AnswerSpec> PlanAnswer(const v1::AnswerOptions& options, const LayerGroup& group,
                                      const v1::Accuracy* accuracy) {
  AnswerSpec spec;
  spec.shape = group.engine->shape();
  spec.engine = group.kind;
  absl::StatusOr<engine::DataType> type =
      CheckDataType(options.output_dtype(), "options.output_dtype");
  if (!type.ok()) return type.status();
  spec.output_type = *type;
  spec.flags = options.flags();
  spec.denominators = options.denominators();
  spec.partials = options.partials();
  spec.scaled = group.engine->scaled_features();
  spec.top_k = options.top_k();
  if (spec.top_k < 0 || spec.top_k > kMaxTopK) {
    return Error(v1::INVALID_FIELD,
                 absl::StrCat("options.top_k is ", spec.top_k, "; it must be 0 to ", kMaxTopK));
  }
  if (spec.top_k > 0 && group.kind == EngineKind::kLinear) {
    return Error(v1::UNSUPPORTED, absl::StrCat("options.top_k is ", spec.top_k, "; a ",
                                               group.engine->name(), " layer has no top_k"));
  }
  if (spec.denominators && group.kind != EngineKind::kLinear) {
    return Error(
        v1::UNSUPPORTED,
        absl::StrCat("options.denominators is set; the layer's engine is ", group.engine->name(),
                     ", which has none; its partials carry log_normalizers"));
  }
  if (spec.denominators && !group.engine->has_denominators()) {
    return Error(v1::UNSUPPORTED,
                 "options.denominators is set; the layer's queries have none of their own");
  }
  if (spec.partials && !group.engine->mergeable()) {
    return Error(v1::NOT_MERGEABLE,
                 "options.partials is set; the layer's answers over parts of a context do not add "
                 "up to the answer over the whole");
  }
  absl::Status estimated = PlanEstimates(options, group, accuracy, spec);
  if (!estimated.ok()) return estimated;
  return spec;
}

std::int64_t AnswerBytes(const AnswerSpec& spec, std::int64_t queries) {
  return kOverheadBytes + queries * QueryBytes(spec);
}

std::int64_t WorkBytes(const AnswerSpec& spec, const RowsView& queries, std::int64_t plan_bytes) {
  constexpr std::int64_t kF32 = sizeof(float);
  const std::int64_t outputs = queries.rows * spec.shape.output_row() * kF32;
  std::int64_t bytes = AnswerBytes(spec, queries.rows) + plan_bytes;
  if (spec.output_type != engine::DataType::kF32) bytes += outputs;
  if (queries.elements.type != engine::DataType::kF32) bytes += queries.elements.count * kF32;
  if (spec.approximate) {
    const std::int64_t row_bytes = kAuditWorkBytes + (spec.estimates ? 0 : kEstimateWorkBytes);
    bytes += queries.rows * spec.shape.query_heads * row_bytes;
  }
  return bytes;
}

absl::Status CheckAnswerFits(const AnswerSpec& spec, std::int64_t queries,
                             std::int64_t max_response_bytes) {
  const std::int64_t most =
      std::max<std::int64_t>(max_response_bytes - kOverheadBytes, 0) / QueryBytes(spec);
  if (queries <= most) return absl::OkStatus();
  return Error(v1::RESPONSE_TOO_LARGE,
               absl::StrCat("the answer to ", queries, " queries would take about ", queries, " * ",
                            QueryBytes(spec), " bytes; max_response_bytes = ", max_response_bytes,
                            " allows ", most, " queries"),
               {{"max_queries", absl::StrCat(most)}});
}

AnswerBuilder::AnswerBuilder(const AnswerSpec& spec, std::int64_t queries, v1::Answer& answer)
    : spec_(spec), queries_(queries), answer_(answer) {
  const std::int64_t heads = spec.shape.query_heads;
  const std::int64_t dim = spec.shape.value_dim;
  if (spec.output_type == engine::DataType::kF32) {
    view_.outputs = MakeF32(*answer.mutable_outputs(), {queries, heads, dim});
  } else {
    wide_outputs_ = engine::AlignedBuffer<float>::Uninitialized(queries * heads * dim);
    view_.outputs = wide_outputs_.data();
  }
  if (spec.flags) {
    answer.mutable_flags()->resize(static_cast<std::size_t>(queries * heads));
    view_.flags = reinterpret_cast<std::uint8_t*>(answer.mutable_flags()->data());
  }
  if (spec.denominators) {
    view_.denominators = MakeF32(*answer.mutable_denominators(), {queries, heads});
    if (spec.scaled) {
      view_.exponents = MakeExponents(*answer.mutable_denominator_exponents(), queries * heads);
    }
  }
  if (spec.partials && spec.engine != EngineKind::kLinear) {
    view_.log_normalizers =
        MakeF32(*answer.mutable_partial()->mutable_log_normalizers(), {queries, heads});
  }
  if (spec.partials && spec.engine == EngineKind::kLinear) {
    v1::Partial& partial = *answer.mutable_partial();
    view_.numerators = MakeF32(*partial.mutable_numerators(), {queries, heads, dim});
    // The engine writes denominators and exponents once; Finish() copies them where both were asked
    // for.
    if (view_.denominators == nullptr) {
      view_.denominators = MakeF32(*partial.mutable_denominators(), {queries, heads});
    }
    if (!spec.scaled) {
      partial.add_exponents(0);
    } else if (view_.exponents == nullptr) {
      view_.exponents = MakeExponents(*partial.mutable_exponents(), queries * heads);
    }
  }
  if (spec.top_k > 0) {
    v1::TopK& top = *answer.mutable_top_k();
    top.set_k(static_cast<std::int32_t>(spec.top_k));
    top.mutable_positions()->Resize(static_cast<int>(queries * heads * spec.top_k), 0);
    view_.top_k = spec.top_k;
    view_.top_positions = reinterpret_cast<std::int64_t*>(top.mutable_positions()->mutable_data());
    view_.top_weights = MakeF32(*top.mutable_weights(), {queries, heads, spec.top_k});
  }
  if (spec.approximate) {
    estimates_.emplace(queries, heads, spec.estimates ? answer.mutable_estimates() : nullptr);
  }
}

engine::AnswerView AnswerBuilder::View(std::int64_t first) {
  const std::int64_t rows = first * spec_.shape.query_heads;
  engine::AnswerView view = view_;
  view.outputs = Offset(view.outputs, rows * spec_.shape.value_dim);
  view.flags = Offset(view.flags, rows);
  view.log_normalizers = Offset(view.log_normalizers, rows);
  view.numerators = Offset(view.numerators, rows * spec_.shape.value_dim);
  view.denominators = Offset(view.denominators, rows);
  view.exponents = Offset(view.exponents, rows);
  view.top_positions = Offset(view.top_positions, rows * view.top_k);
  view.top_weights = Offset(view.top_weights, rows * view.top_k);
  if (estimates_) view.estimates = estimates_->View(rows);
  return view;
}

absl::Status AnswerBuilder::Finish() {
  if (estimates_) estimates_->Finish(spec_.accuracy.target_error);
  if (spec_.denominators && spec_.partials) {
    v1::Partial& partial = *answer_.mutable_partial();
    *partial.mutable_denominators() = answer_.denominators();
    if (spec_.scaled) *partial.mutable_exponents() = answer_.denominator_exponents();
  }
  if (spec_.output_type == engine::DataType::kF32) return absl::OkStatus();
  const std::int64_t count = wide_outputs_.size();
  v1::Tensor& outputs = *answer_.mutable_outputs();
  outputs.set_dtype(ToProto(spec_.output_type));
  for (const std::int64_t size : {queries_, spec_.shape.query_heads, spec_.shape.value_dim}) {
    outputs.add_shape(size);
  }
  outputs.mutable_data()->resize(static_cast<std::size_t>(count) * sizeof(std::uint16_t));
  auto* narrow = reinterpret_cast<std::uint16_t*>(outputs.mutable_data()->data());
  const bool fits = spec_.output_type == engine::DataType::kF16
                        ? engine::F32ToF16(wide_outputs_.data(), narrow, count)
                        : engine::F32ToBf16(wide_outputs_.data(), narrow, count);
  if (fits) return absl::OkStatus();
  return Error(v1::OUTPUT_OVERFLOW,
               absl::StrCat("an output leaves the range of options.output_dtype = ",
                            v1::DataType_Name(ToProto(spec_.output_type)), "; ask for F32"));
}

}  // namespace attnd::server
