#include "client/stream.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/duration.h"
#include "client/error.h"
#include "client/transport.h"

namespace attnd::client {
namespace {

absl::Status TooLarge(const char* what, std::int64_t rows, std::int64_t fits) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", rows,
                   " rows do not fit one message of the stream; send at "
                   "most ",
                   fits, ", or use the unary call"));
}

// A callback that completes a future.
template <class Result>
std::pair<std::function<void(absl::StatusOr<Result>)>, std::future<absl::StatusOr<Result>>>
Promise() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Result>>>();
  auto future = promise->get_future();
  return {[promise](absl::StatusOr<Result> result) { promise->set_value(std::move(result)); },
          std::move(future)};
}

absl::Status WrongKind() {
  return absl::InternalError("the server answered a message of the stream with another kind");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> Stream::Open(std::shared_ptr<Transport> transport,
                                                     StreamSession session,
                                                     const StreamOptions& options) {
  if (options.max_unanswered < 1 || options.max_unanswered_bytes < 1) {
    return absl::InvalidArgumentError("stream options: the window is smaller than one message");
  }
  StreamOptions bounded = options;
  const v1::ServerLimits& limits = session.server_limits;
  if (limits.max_stream_messages() > 0) {
    bounded.max_unanswered = std::min(bounded.max_unanswered, limits.max_stream_messages());
  }
  if (limits.max_stream_bytes() > 0) {
    bounded.max_unanswered_bytes =
        std::min(bounded.max_unanswered_bytes, std::int64_t{limits.max_stream_bytes()});
  }
  return std::unique_ptr<Stream>(new Stream(std::move(transport), std::move(session), bounded));
}

Stream::Stream(std::shared_ptr<Transport> transport, StreamSession session,
               const StreamOptions& options)
    : transport_(std::move(transport)), session_(std::move(session)), options_(options) {
  transport_->Prepare(session_.id, &context_);
  if (options_.lifetime > absl::ZeroDuration()) {
    context_.set_deadline(std::chrono::system_clock::now() + ToChrono(options_.lifetime));
  }
  call_ = transport_->stub().Stream(&context_);
  reader_ = std::thread([this] { ReadAnswers(); });
  reader_id_ = reader_.get_id();
}

Stream::~Stream() {
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
}

absl::Status Stream::Append(std::span<const LayerTokens> tokens, Callback<AppendResult> done) {
  if (const absl::Status status = CheckTokens(tokens, session_.shapes); !status.ok()) {
    return status;
  }
  std::int64_t bytes = 0;
  std::int64_t rows = 0;
  std::vector<Change> changes;
  for (const LayerTokens& entry : tokens) {
    bytes += TokenRowBytes(entry) * entry.keys.rows();
    rows = std::max(rows, entry.keys.rows());
    changes.push_back({entry.layer, entry.keys.rows()});
  }
  const std::int64_t limit =
      ForLayers(session_.limits, std::ssize(tokens), GatesOf(tokens)).max_request_bytes;
  if (bytes > limit) return TooLarge("keys", rows, limit / ((bytes + rows - 1) / rows));
  return Send(
      changes, /*is_step=*/false, bytes,
      [&](std::span<const std::int64_t> positions, v1::StreamRequest* request) {
        v1::AppendRequest* append = request->mutable_append();
        append->set_session_id(session_.id);
        append->set_generation(session_.generation);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          FillTokens(tokens[i], 0, tokens[i].keys.rows(), positions[i], append->add_tokens());
        }
      },
      [done = std::move(done)](absl::StatusOr<v1::StreamResponse> answer) {
        if (answer.ok() && !answer->has_append()) answer = WrongKind();
        if (!answer.ok()) return done(answer.status());
        AppendResult result;
        for (const v1::LayerPosition& position : answer->append().positions()) {
          result.positions.push_back(position.position());
          result.durable_positions.push_back(position.durable_position());
        }
        result.messages = 1;
        result.replayed_messages = answer->append().replayed() ? 1 : 0;
        done(std::move(result));
      });
}

absl::Status Stream::Attend(std::int64_t layer, const ConstTensor& queries,
                            const AttendOptions& options, Callback<AttendResult> done) {
  if (const absl::Status status = CheckAttend(layer, queries, options, session_.shapes);
      !status.ok()) {
    return status;
  }
  const std::int64_t row = QueryRowBytes(queries, options);
  const std::int64_t answer_row =
      AnswerBytesPerRow(session_.shapes[static_cast<std::size_t>(layer)], options.answer);
  const std::int64_t fits = std::min(session_.limits.max_request_bytes / row,
                                     session_.limits.max_response_bytes / answer_row);
  if (queries.rows() > fits) return TooLarge("queries", queries.rows(), fits);
  return Send(
      {}, /*is_step=*/false, row * queries.rows(),
      [&](std::span<const std::int64_t>, v1::StreamRequest* request) {
        request->mutable_attend()->set_session_id(session_.id);
        FillAttend(layer, queries, options, 0, queries.rows(), request->mutable_attend());
      },
      [done = std::move(done), rows = queries.rows()](absl::StatusOr<v1::StreamResponse> answer) {
        if (answer.ok() && !answer->has_attend()) answer = WrongKind();
        if (!answer.ok()) return done(answer.status());
        AttendResult result;
        result.answer = std::move(*answer->mutable_attend()->mutable_answer());
        result.position = answer->attend().position();
        result.pieces.push_back({rows, result.position});
        done(std::move(result));
      });
}

absl::Status Stream::Step(const LayerTokens& tokens, const ConstTensor& queries,
                          const StepOptions& options, Callback<StepResult> done) {
  if (const absl::Status status = CheckStep(tokens, queries, session_.shapes); !status.ok()) {
    return status;
  }
  const std::int64_t row = TokenRowBytes(tokens) + RowBytes(queries);
  const std::int64_t answer_row =
      AnswerBytesPerRow(session_.shapes[static_cast<std::size_t>(tokens.layer)], options.answer);
  const std::int64_t fits = std::min(session_.limits.max_request_bytes / row,
                                     session_.limits.max_response_bytes / answer_row);
  if (queries.rows() > fits) return TooLarge("queries", queries.rows(), fits);
  const Change change{tokens.layer, tokens.keys.rows()};
  return Send(
      {&change, 1}, /*is_step=*/true, row * queries.rows(),
      [&](std::span<const std::int64_t> positions, v1::StreamRequest* request) {
        v1::StepRequest* step = request->mutable_step();
        step->set_session_id(session_.id);
        step->set_generation(session_.generation);
        FillTokens(tokens, 0, tokens.keys.rows(), positions[0], step->mutable_tokens());
        FillStep(queries, options, 0, queries.rows(), step);
      },
      [done = std::move(done)](absl::StatusOr<v1::StreamResponse> answer) {
        if (answer.ok() && !answer->has_step()) answer = WrongKind();
        if (!answer.ok()) return done(answer.status());
        StepResult result;
        result.answer = std::move(*answer->mutable_step()->mutable_answer());
        result.position = answer->step().position();
        result.durable_position = answer->step().durable_position();
        result.messages = 1;
        result.replayed_messages = answer->step().replayed() ? 1 : 0;
        done(std::move(result));
      });
}

Stream::Future<AppendResult> Stream::Append(const LayerTokens& tokens) {
  auto [done, future] = Promise<AppendResult>();
  if (const absl::Status status = Append({&tokens, 1}, done); !status.ok()) done(status);
  return std::move(future);
}

Stream::Future<AttendResult> Stream::Attend(std::int64_t layer, const ConstTensor& queries,
                                            const AttendOptions& options) {
  auto [done, future] = Promise<AttendResult>();
  if (const absl::Status status = Attend(layer, queries, options, done); !status.ok()) {
    done(status);
  }
  return std::move(future);
}

Stream::Future<StepResult> Stream::Step(const LayerTokens& tokens, const ConstTensor& queries,
                                        const StepOptions& options) {
  auto [done, future] = Promise<StepResult>();
  if (const absl::Status status = Step(tokens, queries, options, done); !status.ok()) done(status);
  return std::move(future);
}

}  // namespace attnd::client
