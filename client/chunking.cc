#include "client/chunking.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/tensor.h"

namespace attnd::client {
namespace {

// Bytes of a message that are not tensor data: ids of at most 128 characters, shapes, lengths,
// tags.
constexpr std::int64_t kMessageOverhead = 4096;
// The same of one LayerTokens: some 60 bytes, at most 110 with the longest numbers that its shapes,
// lengths and position can have.
constexpr std::int64_t kLayerOverhead = 128;
// And of a tensor of gates.
constexpr std::int64_t kGatesOverhead = 64;

}  // namespace

std::vector<LayerShape> LayersOf(const v1::Session& session) {
  std::vector<LayerShape> layers;
  for (int i = 0; i < session.config().layer_groups_size(); ++i) {
    const v1::LayerGroup& group = session.config().layer_groups(i);
    LayerShape shape{!group.has_linear(), group.kv_heads(), group.query_heads(), group.key_dim(),
                     group.value_dim()};
    const v1::UpdateRule& update = group.linear().update();
    if (update.decay() == v1::UpdateRule::PER_TOKEN) shape.log_decays = 1;
    if (update.decay() == v1::UpdateRule::PER_FEATURE) {
      shape.log_decays =
          i < session.engine_facts_size() ? session.engine_facts(i).feature_dim() : shape.key_dim;
    }
    if (update.delta()) shape.rates = 1;
    shape.whole_batch = group.kde().mode() == v1::KdeConfig::PAPER;
    layers.insert(layers.end(), static_cast<std::size_t>(std::max(group.count(), 1)), shape);
  }
  return layers;
}

ChunkLimits LimitsFor(const v1::ServerLimits& limits, const ClientOptions& options) {
  ChunkLimits chunk;
  chunk.max_request_bytes =
      std::max<std::int64_t>(limits.max_message_bytes() - kMessageOverhead, 1);
  chunk.max_response_bytes =
      std::max<std::int64_t>(limits.max_response_bytes() - kMessageOverhead, 1);
  chunk.request_bytes = std::min(chunk.max_request_bytes, options.target_request_bytes);
  chunk.response_bytes = std::min(chunk.max_response_bytes, options.target_response_bytes);
  return chunk;
}

ChunkLimits ForLayers(ChunkLimits limits, std::int64_t layers, std::int64_t gates) {
  limits.max_request_bytes = std::max<std::int64_t>(
      limits.max_request_bytes - layers * kLayerOverhead - gates * kGatesOverhead, 0);
  limits.request_bytes = std::min(limits.request_bytes, limits.max_request_bytes);
  return limits;
}

ChunkLimits Uncut(ChunkLimits limits) {
  limits.request_bytes = limits.max_request_bytes;
  limits.response_bytes = limits.max_response_bytes;
  return limits;
}

std::int64_t AnswerBytesPerRow(const LayerShape& shape, const v1::AnswerOptions& options) {
  const std::int64_t element =
      options.output_dtype() == v1::F16 || options.output_dtype() == v1::BF16 ? 2 : 4;
  std::int64_t per_head = shape.value_dim * element;
  if (options.flags()) per_head += 1;
  // A denominator and, for some maps, its exponent.
  if (options.denominators()) per_head += 4 + 5;
  if (options.partials()) {
    // A log-normalizer, or numerators, a denominator and an exponent of at most 5 bytes.
    per_head += shape.softmax ? 4 : 4 * shape.value_dim + 4 + 5;
  }
  // A position is a varint of at most 10 bytes, a weight an f32.
  // A negative number is for the server to refuse.
  per_head += std::max(std::int64_t{options.top_k()}, std::int64_t{0}) * (10 + 4);
  // An error, two bounds and a mass in f32, a number of keys, three bytes.
  if (options.estimates()) per_head += 4 * 4 + 10 + 3;
  return per_head * shape.query_heads;
}

absl::StatusOr<std::int64_t> RowsPerMessage(const ChunkLimits& limits, std::int64_t request_row,
                                            std::int64_t response_row) {
  if (request_row > limits.max_request_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("one row needs a message of ", request_row,
                                                   " bytes, the server accepts ",
                                                   limits.max_request_bytes));
  }
  if (response_row > limits.max_response_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("one query needs an answer of ", response_row,
                                                   " bytes, the server sends at most ",
                                                   limits.max_response_bytes));
  }
  std::int64_t rows = limits.request_bytes / std::max<std::int64_t>(request_row, 1);
  if (response_row > 0) rows = std::min(rows, limits.response_bytes / response_row);
  return std::max<std::int64_t>(rows, 1);
}

}  // namespace attnd::client
