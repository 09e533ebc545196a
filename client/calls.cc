#include "client/calls.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

absl::Status CheckLayer(std::int64_t layer, std::span<const LayerShape> layers) {
  if (layer >= 0 && layer < static_cast<std::int64_t>(layers.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer: ", layer, " is not below the session's ", layers.size(), " layers"));
}

absl::Status CheckQueries(std::int64_t layer, const ConstTensor& queries,
                          std::span<const LayerShape> layers) {
  if (const absl::Status status = CheckLayer(layer, layers); !status.ok()) return status;
  const LayerShape& shape = layers[static_cast<std::size_t>(layer)];
  return CheckTensor(queries, "queries", shape.query_heads, shape.key_dim);
}

// `numbers` per token and head; 0: none.
absl::Status CheckGates(const ConstTensor& gates, const std::string& field, std::int64_t tokens,
                        std::int64_t heads, std::int64_t numbers) {
  if (numbers == 0 && gates.shape.empty()) return absl::OkStatus();
  if (numbers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": given; the layer's update rule takes none"));
  }
  const absl::Status status = CheckTensor(gates, field, heads, numbers);
  if (!status.ok() || gates.rows() == tokens) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", gates.rows(), " tokens, keys have ", tokens));
}

absl::Status JoinTensors(v1::Tensor* piece, v1::Tensor* whole) {
  if (whole->shape().empty()) {
    *whole = std::move(*piece);
    return absl::OkStatus();
  }
  bool fits = piece->dtype() == whole->dtype() && piece->shape_size() == whole->shape_size();
  for (int i = 1; fits && i < whole->shape_size(); ++i) fits = piece->shape(i) == whole->shape(i);
  if (!fits) return absl::InternalError("the server answered parts of a call in different shapes");
  whole->set_shape(0, whole->shape(0) + piece->shape(0));
  whole->mutable_data()->append(piece->data());
  return absl::OkStatus();
}

// One exponent may stand for all rows; it is written out where the parts disagree.
void JoinExponents(const v1::Partial& piece, std::int64_t piece_rows, std::int64_t whole_rows,
                   v1::Partial* whole) {
  if (whole_rows == 0) {
    *whole->mutable_exponents() = piece.exponents();
    return;
  }
  if (piece.exponents_size() == 1 && whole->exponents_size() == 1 &&
      piece.exponents(0) == whole->exponents(0)) {
    return;
  }
  const auto expand = [](const v1::Partial& from, std::int64_t rows,
                         google::protobuf::RepeatedField<std::int32_t>* to) {
    if (from.exponents_size() != 1) {
      to->MergeFrom(from.exponents());
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i) to->Add(from.exponents(0));
  };
  google::protobuf::RepeatedField<std::int32_t> joined;
  expand(*whole, whole_rows, &joined);
  expand(piece, piece_rows, &joined);
  *whole->mutable_exponents() = std::move(joined);
}

std::int64_t RowsOf(const v1::Tensor& tensor) {
  return tensor.shape_size() < 2 ? 0 : tensor.shape(0) * tensor.shape(1);
}

absl::Status JoinPartials(v1::Partial* piece, v1::Partial* whole) {
  if (piece->exponents_size() > 0) {
    JoinExponents(*piece, RowsOf(piece->denominators()), RowsOf(whole->denominators()), whole);
  }
  absl::Status status = absl::OkStatus();
  if (piece->has_log_normalizers()) {
    status.Update(JoinTensors(piece->mutable_log_normalizers(), whole->mutable_log_normalizers()));
  }
  if (piece->has_numerators()) {
    status.Update(JoinTensors(piece->mutable_numerators(), whole->mutable_numerators()));
  }
  if (piece->has_denominators()) {
    status.Update(JoinTensors(piece->mutable_denominators(), whole->mutable_denominators()));
  }
  return status;
}

absl::Status JoinEstimates(v1::Estimates* piece, v1::Estimates* whole) {
  absl::Status status = JoinTensors(piece->mutable_errors(), whole->mutable_errors());
  status.Update(
      JoinTensors(piece->mutable_log_normalizer_bounds(), whole->mutable_log_normalizer_bounds()));
  status.Update(JoinTensors(piece->mutable_exact_masses(), whole->mutable_exact_masses()));
  whole->set_coverage(piece->coverage());
  whole->mutable_keys_evaluated()->MergeFrom(piece->keys_evaluated());
  whole->mutable_paths()->append(piece->paths());
  whole->mutable_calibrated()->append(piece->calibrated());
  whole->mutable_target_met()->append(piece->target_met());
  return status;
}

}  // namespace

absl::Status CheckTokens(std::span<const LayerTokens> tokens, std::span<const LayerShape> layers) {
  if (tokens.empty()) return absl::InvalidArgumentError("tokens: at least one layer is needed");
  std::vector<bool> seen(layers.size(), false);
  for (const LayerTokens& entry : tokens) {
    if (const absl::Status status = CheckLayer(entry.layer, layers); !status.ok()) return status;
    const auto layer = static_cast<std::size_t>(entry.layer);
    if (seen[layer]) {
      return absl::InvalidArgumentError(absl::StrCat("tokens: layer ", layer, " is named twice"));
    }
    seen[layer] = true;
    const LayerShape& shape = layers[layer];
    absl::Status status = CheckTensor(entry.keys, "keys", shape.kv_heads, shape.key_dim);
    status.Update(CheckTensor(entry.values, "values", shape.kv_heads, shape.value_dim));
    if (!status.ok()) return status;
    if (entry.keys.rows() != entry.values.rows()) {
      return absl::InvalidArgumentError(
          absl::StrCat("values: ", entry.values.rows(), " tokens, keys have ", entry.keys.rows()));
    }
    if (!entry.mask.empty() && static_cast<std::int64_t>(entry.mask.size()) != entry.keys.rows()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mask: ", entry.mask.size(), " tokens, keys have ", entry.keys.rows()));
    }
    status = CheckGates(entry.log_decays, "log_decays", entry.keys.rows(), shape.kv_heads,
                        shape.log_decays);
    status.Update(CheckGates(entry.rates, "rates", entry.keys.rows(), shape.kv_heads, shape.rates));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckAttend(std::int64_t layer, const ConstTensor& queries,
                         const AttendOptions& options, std::span<const LayerShape> layers) {
  if (const absl::Status status = CheckQueries(layer, queries, layers); !status.ok()) return status;
  if (!options.query_positions.empty() &&
      static_cast<std::int64_t>(options.query_positions.size()) != queries.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("query_positions: ", options.query_positions.size(), " numbers for ",
                     queries.rows(), " queries"));
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const LayerTokens& tokens, const ConstTensor& queries,
                       std::span<const LayerShape> layers) {
  absl::Status status = CheckTokens({&tokens, 1}, layers);
  status.Update(CheckQueries(tokens.layer, queries, layers));
  if (!status.ok()) return status;
  if (queries.rows() != tokens.keys.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries: ", queries.rows(), " rows, keys have ", tokens.keys.rows()));
  }
  return absl::OkStatus();
}

std::int64_t GatesOf(std::span<const LayerTokens> tokens) {
  std::int64_t gates = 0;
  for (const LayerTokens& entry : tokens) {
    gates += (entry.log_decays.shape.empty() ? 0 : 1) + (entry.rates.shape.empty() ? 0 : 1);
  }
  return gates;
}

std::int64_t TokenRowBytes(const LayerTokens& tokens) {
  return RowBytes(tokens.keys) + RowBytes(tokens.values) + RowBytes(tokens.log_decays) +
         RowBytes(tokens.rates) + (tokens.mask.empty() ? 0 : 1);
}

std::int64_t QueryRowBytes(const ConstTensor& queries, const AttendOptions& options) {
  // A query position is a varint of at most 10 bytes.
  return RowBytes(queries) + (options.query_positions.empty() ? 0 : 10);
}

void FillTokens(const LayerTokens& tokens, std::int64_t first, std::int64_t count,
                std::int64_t position, v1::LayerTokens* to) {
  to->set_layer(static_cast<std::int32_t>(tokens.layer));
  to->set_position(position);
  ToProto(Rows(tokens.keys, first, count), to->mutable_keys());
  ToProto(Rows(tokens.values, first, count), to->mutable_values());
  if (!tokens.mask.empty()) {
    to->set_mask(
        tokens.mask.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  }
  if (!tokens.log_decays.shape.empty()) {
    ToProto(Rows(tokens.log_decays, first, count), to->mutable_log_decays());
  }
  if (!tokens.rates.shape.empty()) ToProto(Rows(tokens.rates, first, count), to->mutable_rates());
}

void FillAttend(std::int64_t layer, const ConstTensor& queries, const AttendOptions& options,
                std::int64_t first, std::int64_t count, v1::AttendRequest* to) {
  to->set_layer(static_cast<std::int32_t>(layer));
  ToProto(Rows(queries, first, count), to->mutable_queries());
  if (!options.query_positions.empty()) {
    const auto begin = options.query_positions.begin() + first;
    to->mutable_query_positions()->Assign(begin, begin + count);
  }
  to->set_min_position(options.min_position);
  to->set_wait(options.wait);
  *to->mutable_options() = options.answer;
  if (options.accuracy.has_value()) *to->mutable_accuracy() = *options.accuracy;
}

void FillStep(const ConstTensor& queries, const StepOptions& options, std::int64_t first,
              std::int64_t count, v1::StepRequest* to) {
  ToProto(Rows(queries, first, count), to->mutable_queries());
  *to->mutable_options() = options.answer;
  if (options.accuracy.has_value()) *to->mutable_accuracy() = *options.accuracy;
}

absl::Status JoinAnswers(v1::Answer* piece, v1::Answer* whole) {
  absl::Status status = JoinTensors(piece->mutable_outputs(), whole->mutable_outputs());
  whole->mutable_flags()->append(piece->flags());
  whole->mutable_denominator_exponents()->MergeFrom(piece->denominator_exponents());
  if (piece->has_denominators()) {
    status.Update(JoinTensors(piece->mutable_denominators(), whole->mutable_denominators()));
  }
  if (piece->has_partial()) {
    status.Update(JoinPartials(piece->mutable_partial(), whole->mutable_partial()));
  }
  if (piece->has_top_k()) {
    v1::TopK* top = whole->mutable_top_k();
    top->set_k(piece->top_k().k());
    top->mutable_positions()->MergeFrom(piece->top_k().positions());
    status.Update(JoinTensors(piece->mutable_top_k()->mutable_weights(), top->mutable_weights()));
  }
  if (piece->has_estimates()) {
    status.Update(JoinEstimates(piece->mutable_estimates(), whole->mutable_estimates()));
  }
  return status;
}

}  // namespace attnd::client
