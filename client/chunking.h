// How many tokens or queries go into one message.
//
// Limits come from GetServerInfo; the results are lower bounds of what fits, so that a cut call
// never meets them. Pure functions, thread-safe.
#ifndef ATTND_CLIENT_CHUNKING_H_
#define ATTND_CLIENT_CHUNKING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "client/options.h"

namespace attnd::client {

// What determines the sizes of a layer's messages.
struct LayerShape {
  // exact or kde: partials are log-normalizers, not numerators.
  bool softmax = true;
  std::int64_t kv_heads = 1;
  std::int64_t query_heads = 1;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  // Gates that the layer's update rule takes, per token and kv-head.
  std::int64_t log_decays = 0;
  std::int64_t rates = 0;
  // Answers depend on all queries of a call, which is not to be cut.
  bool whole_batch = false;
};

// One shape per layer, in order. `session` is the server's, with all defaults filled in.
std::vector<LayerShape> LayersOf(const v1::Session& session);

// Sizes that one message keeps to.
struct ChunkLimits {
  // Tensor and mask bytes of a request.
  std::int64_t request_bytes = 0;
  // Bytes of an answer.
  std::int64_t response_bytes = 0;
  // What the server accepts at most, where a single row is larger than the targets above.
  std::int64_t max_request_bytes = 0;
  std::int64_t max_response_bytes = 0;
};

ChunkLimits LimitsFor(const v1::ServerLimits& limits, const ClientOptions& options);

// The same for a request with the tokens of `layers` layers and `gates` tensors of gates, each of
// which costs some bytes beside its numbers.
ChunkLimits ForLayers(ChunkLimits limits, std::int64_t layers, std::int64_t gates = 0);

// Without targets: what the server accepts at most, for calls that cannot be cut.
ChunkLimits Uncut(ChunkLimits limits);

// Upper bound of the answer's bytes per query row, apart from what every answer costs.
std::int64_t AnswerBytesPerRow(const LayerShape& shape, const v1::AnswerOptions& options);

// Rows per message for rows of `request_row` bytes whose answers take `response_row` bytes (0:
// none): at least 1. INVALID_ARGUMENT if even one row exceeds what the server accepts.
absl::StatusOr<std::int64_t> RowsPerMessage(const ChunkLimits& limits, std::int64_t request_row,
                                            std::int64_t response_row);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CHUNKING_H_
