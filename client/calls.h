// What goes into and comes out of Append, Attend and Step, for unary calls and streams alike.
//
// Tensors are views of the caller's memory and are read before a call returns.
#ifndef ATTND_CLIENT_CALLS_H_
#define ATTND_CLIENT_CALLS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "client/chunking.h"
#include "client/options.h"
#include "client/tensor.h"

namespace attnd::client {

// New tokens of one layer.
struct LayerTokens {
  std::int64_t layer = 0;
  // [n, H, d_k] and [n, H, d_v], n at least 1.
  ConstTensor keys;
  ConstTensor values;
  // Empty, or one byte per token: 1 counts, 0 takes a position and contributes nothing.
  std::string mask;
  // [n, H, 1] or [n, H, c], and [n, H, 1], where the layer's update rule takes them; else empty.
  ConstTensor log_decays = {};
  ConstTensor rates = {};
};

struct AppendResult {
  // Positions after the tokens, in the order of the layers given.
  std::vector<std::int64_t> positions;
  // Tokens that would survive a crash (v1::Durability), in the same order; 0 of an EPHEMERAL
  // session.
  std::vector<std::int64_t> durable_positions;
  // Messages it took, and how many of them the server had already.
  std::int64_t messages = 0;
  std::int64_t replayed_messages = 0;
};

struct AttendOptions {
  // Where the queries stand in the stream; empty, or one per query.
  std::vector<std::int64_t> query_positions;
  std::int64_t min_position = 0;
  // Wait for min_position, up to the deadline.
  bool wait = false;
  v1::AnswerOptions answer;
  // Tightens or loosens the session's; only for kde layers.
  std::optional<v1::Accuracy> accuracy;
  CallOptions call;
};

struct AttendResult {
  v1::Answer answer;
  // The answer covers tokens 0 to position - 1. If the call took several messages while another
  // writer appended, the smallest of their positions, and `pieces` says more.
  std::int64_t position = 0;
  // One entry per message: its queries and the position they were answered at.
  struct Piece {
    std::int64_t queries = 0;
    std::int64_t position = 0;
  };
  std::vector<Piece> pieces;
};

struct StepOptions {
  v1::AnswerOptions answer;
  // As in AttendOptions.
  std::optional<v1::Accuracy> accuracy;
  CallOptions call;
};

struct StepResult {
  v1::Answer answer;
  std::int64_t position = 0;
  // As in AppendResult.
  std::int64_t durable_position = 0;
  std::int64_t messages = 0;
  std::int64_t replayed_messages = 0;
};

// Checks of a call before anything is sent; INVALID_ARGUMENT names the field. `layers` are the
// session's.
absl::Status CheckTokens(std::span<const LayerTokens> tokens, std::span<const LayerShape> layers);
absl::Status CheckAttend(std::int64_t layer, const ConstTensor& queries,
                         const AttendOptions& options, std::span<const LayerShape> layers);
absl::Status CheckStep(const LayerTokens& tokens, const ConstTensor& queries,
                       std::span<const LayerShape> layers);

// How many tensors of gates a checked request has.
std::int64_t GatesOf(std::span<const LayerTokens> tokens);

// Bytes per row of a checked request.
std::int64_t TokenRowBytes(const LayerTokens& tokens);
std::int64_t QueryRowBytes(const ConstTensor& queries, const AttendOptions& options);

// Rows [first, first + count) of checked tokens as a message with its position.
void FillTokens(const LayerTokens& tokens, std::int64_t first, std::int64_t count,
                std::int64_t position, v1::LayerTokens* to);

// Queries [first, first + count) as a message.
void FillAttend(std::int64_t layer, const ConstTensor& queries, const AttendOptions& options,
                std::int64_t first, std::int64_t count, v1::AttendRequest* to);

// The queries of a Step and what is asked of them, as a message; its tokens are filled in apart.
void FillStep(const ConstTensor& queries, const StepOptions& options, std::int64_t first,
              std::int64_t count, v1::StepRequest* to);

// Appends the rows of `piece` to those of `whole`, which is empty or of the same kind. Moves out of
// `piece`. INTERNAL if the two do not fit together.
absl::Status JoinAnswers(v1::Answer* piece, v1::Answer* whole);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CALLS_H_
