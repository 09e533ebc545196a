#include "client/session.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/transport.h"

namespace attnd::client {
namespace {

// Of what the session holds already, the last messages that are sent again to be compared. The
// server remembers 128, other layers' and writers' among them.
constexpr std::int64_t kVerifiedMessages = 32;

// Gives the layers back when a call ends.
class Turn {
 public:
  Turn(Ledger& ledger, std::vector<std::int64_t> layers)
      : ledger_(ledger), layers_(std::move(layers)) {}
  ~Turn() {
    if (taken_) ledger_.Release(layers_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  absl::Status Take(Ledger::Deadline deadline) {
    const absl::Status status = ledger_.Acquire(layers_, this, deadline);
    taken_ = status.ok();
    return status;
  }

 private:
  Ledger& ledger_;
  const std::vector<std::int64_t> layers_;
  bool taken_ = false;
};

// Says how far a call of several messages came.
absl::Status Partway(const absl::Status& status, std::int64_t done, std::int64_t all,
                     const char* what) {
  if (done == 0) return status;
  return WithMessage(status,
                     absl::StrCat(status.message(), " (", done, " of ", all, " ", what, ")"));
}

// A server that computes an answer's size in another way than this library says how many queries
// fit; the rest of the call keeps to that.
bool Shrink(const absl::Status& status, std::int64_t* rows) {
  if (ErrorReasonOf(status) != "RESPONSE_TOO_LARGE") return false;
  const std::int64_t fits = ErrorNumberOf(status, "max_queries").value_or(0);
  if (fits < 1 || fits >= *rows) return false;
  *rows = fits;
  return true;
}

}  // namespace

SessionHandle::SessionHandle(std::shared_ptr<Transport> transport, const v1::ServerLimits& limits,
                             const v1::Session& session)
    : transport_(std::move(transport)),
      server_limits_(limits),
      limits_(LimitsFor(limits, transport_->options())),
      id_(session.session_id()),
      generation_(session.generation()),
      shapes_(LayersOf(session)),
      ledger_(std::make_shared<Ledger>(
          [&] {
            std::vector<std::int64_t> positions(session.layer_positions().begin(),
                                                session.layer_positions().end());
            positions.resize(shapes_.size(), 0);
            return positions;
          }(),
          std::vector<std::int64_t>(session.durable_layer_positions().begin(),
                                    session.durable_layer_positions().end()))) {}

absl::StatusOr<AppendResult> SessionHandle::Append(const LayerTokens& tokens,
                                                   const CallOptions& call) {
  return Append({&tokens, 1}, call);
}

absl::StatusOr<AppendResult> SessionHandle::Append(std::span<const LayerTokens> tokens,
                                                   const CallOptions& call) {
  return AppendAt(tokens, {}, call);
}

absl::StatusOr<AppendResult> SessionHandle::AppendAt(std::span<const LayerTokens> tokens,
                                                     std::span<const std::int64_t> positions,
                                                     const CallOptions& call) {
  if (const absl::Status status = CheckTokens(tokens, shapes_); !status.ok()) return status;
  if (!positions.empty() && positions.size() != tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions: ", positions.size(), " numbers for ", tokens.size(), " layers"));
  }
  std::vector<std::int64_t> layers;
  for (const LayerTokens& entry : tokens) layers.push_back(entry.layer);
  const absl::Time deadline = transport_->DeadlineFor(call);
  Turn turn(*ledger_, layers);
  if (const absl::Status status = turn.Take(transport_->WaitDeadline(deadline)); !status.ok()) {
    return status;
  }
  std::vector<std::int64_t> at(positions.begin(), positions.end());
  if (at.empty()) {
    for (const std::int64_t layer : layers) at.push_back(ledger_->Acknowledged(layer));
  }
  return AppendLocked(tokens, std::move(at), deadline);
}

absl::StatusOr<AppendResult> SessionHandle::AppendLocked(std::span<const LayerTokens> tokens,
                                                         std::vector<std::int64_t> positions,
                                                         absl::Time deadline) {
  std::int64_t row_bytes = 0;
  std::int64_t all = 0;
  for (const LayerTokens& entry : tokens) {
    row_bytes += TokenRowBytes(entry);
    all = std::max(all, entry.keys.rows());
  }
  const auto rows =
      RowsPerMessage(ForLayers(limits_, std::ssize(tokens), GatesOf(tokens)), row_bytes, 0);
  if (!rows.ok()) return rows.status();

  AppendResult result;
  v1::AppendRequest request;
  v1::AppendResponse response;
  std::int64_t begin = 0;
  while (begin < all && HeldSince(tokens, positions, begin + *rows, *rows * kVerifiedMessages)) {
    begin += *rows;
    ++result.messages;
    ++result.replayed_messages;
  }
  for (std::int64_t first = begin; first < all; first += *rows) {
    request.Clear();
    request.set_session_id(id_);
    request.set_generation(generation_);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t count = std::min(*rows, tokens[i].keys.rows() - first);
      if (count > 0)
        FillTokens(tokens[i], first, count, positions[i] + first, request.add_tokens());
    }
    const absl::Status status =
        transport_->Call(&Transport::Stub::Append, id_, request, &response, deadline);
    if (!status.ok()) return Partway(status, first, all, "tokens of the call were acknowledged");
    ++result.messages;
    result.replayed_messages += response.replayed() ? 1 : 0;
    for (const v1::LayerTokens& sent : request.tokens()) Acknowledge(sent);
    NoteDurable(response.positions());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    result.positions.push_back(positions[i] + tokens[i].keys.rows());
    result.durable_positions.push_back(ledger_->Durable(tokens[i].layer));
  }
  return result;
}

// Whether the session holds the call's first `rows` rows of each layer, and `more` rows after them
// or after the layer's last.
bool SessionHandle::HeldSince(std::span<const LayerTokens> tokens,
                              std::span<const std::int64_t> positions, std::int64_t rows,
                              std::int64_t more) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t end = positions[i] + std::min(rows, tokens[i].keys.rows());
    if (ledger_->Acknowledged(tokens[i].layer) < end + more) return false;
  }
  return true;
}

void SessionHandle::Acknowledge(const v1::LayerTokens& sent) {
  // Not from the answer: a replayed message may lie before what is there already.
  const std::int64_t end = sent.position() + sent.keys().shape(0);
  ledger_->SetAcknowledged(sent.layer(), std::max(end, ledger_->Acknowledged(sent.layer())));
}

absl::StatusOr<AttendResult> SessionHandle::Attend(std::int64_t layer, const ConstTensor& queries,
                                                   const AttendOptions& options) {
  if (const absl::Status status = CheckAttend(layer, queries, options, shapes_); !status.ok()) {
    return status;
  }
  const bool uncut = shape(layer).whole_batch;
  auto rows = RowsPerMessage(uncut ? Uncut(limits_) : limits_, QueryRowBytes(queries, options),
                             AnswerBytesPerRow(shape(layer), options.answer));
  if (!rows.ok()) return rows.status();
  if (uncut && queries.rows() > *rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries: ", queries.rows(), " rows; a message holds ", *rows,
                     ", and this layer's answers depend on all queries of a call"));
  }

  const absl::Time deadline = transport_->DeadlineFor(options.call);
  RetryPolicy retry = transport_->options().retry;
  // A server that waits as it was asked to is not one that has stopped answering.
  if (options.wait) retry.attempt_timeout = absl::InfiniteDuration();
  AttendResult result;
  v1::AttendRequest request;
  v1::AttendResponse response;
  for (std::int64_t first = 0; first < queries.rows();) {
    const std::int64_t count = std::min(*rows, queries.rows() - first);
    request.Clear();
    request.set_session_id(id_);
    FillAttend(layer, queries, options, first, count, &request);
    absl::Status status =
        transport_->Call(&Transport::Stub::Attend, id_, request, &response, deadline, retry);
    if (!status.ok() && !uncut && Shrink(status, &*rows)) continue;
    if (status.ok()) status = JoinAnswers(response.mutable_answer(), &result.answer);
    if (!status.ok()) return status;
    result.pieces.push_back({count, response.position()});
    result.position = first == 0 ? response.position()
                                 : std::min(result.position, std::int64_t{response.position()});
    first += count;
  }
  return result;
}

absl::StatusOr<StepResult> SessionHandle::Step(const LayerTokens& tokens,
                                               const ConstTensor& queries,
                                               const StepOptions& options) {
  return StepFrom(std::nullopt, tokens, queries, options);
}

absl::StatusOr<StepResult> SessionHandle::StepAt(const LayerTokens& tokens, std::int64_t position,
                                                 const ConstTensor& queries,
                                                 const StepOptions& options) {
  return StepFrom(position, tokens, queries, options);
}

absl::StatusOr<StepResult> SessionHandle::StepFrom(std::optional<std::int64_t> position,
                                                   const LayerTokens& tokens,
                                                   const ConstTensor& queries,
                                                   const StepOptions& options) {
  if (const absl::Status status = CheckStep(tokens, queries, shapes_); !status.ok()) return status;
  const absl::Time deadline = transport_->DeadlineFor(options.call);
  Turn turn(*ledger_, {tokens.layer});
  if (const absl::Status status = turn.Take(transport_->WaitDeadline(deadline)); !status.ok()) {
    return status;
  }
  return StepLocked(position.value_or(ledger_->Acknowledged(tokens.layer)), tokens, queries,
                    options, deadline);
}

absl::StatusOr<StepResult> SessionHandle::StepLocked(std::int64_t position,
                                                     const LayerTokens& tokens,
                                                     const ConstTensor& queries,
                                                     const StepOptions& options,
                                                     absl::Time deadline) {
  auto rows = RowsPerMessage(limits_, TokenRowBytes(tokens) + RowBytes(queries),
                             AnswerBytesPerRow(shape(tokens.layer), options.answer));
  if (!rows.ok()) return rows.status();

  StepResult result;
  v1::StepRequest request;
  v1::StepResponse response;
  for (std::int64_t first = 0; first < queries.rows();) {
    const std::int64_t count = std::min(*rows, queries.rows() - first);
    request.Clear();
    request.set_session_id(id_);
    request.set_generation(generation_);
    FillTokens(tokens, first, count, position + first, request.mutable_tokens());
    FillStep(queries, options, first, count, &request);
    absl::Status status =
        transport_->Call(&Transport::Stub::Step, id_, request, &response, deadline);
    if (!status.ok() && Shrink(status, &*rows)) continue;
    if (status.ok()) {
      Acknowledge(request.tokens());
      ledger_->RaiseDurable(tokens.layer, response.durable_position());
      status = JoinAnswers(response.mutable_answer(), &result.answer);
    }
    if (!status.ok()) {
      return Partway(status, first, queries.rows(), "tokens of the call were acknowledged");
    }
    ++result.messages;
    result.replayed_messages += response.replayed() ? 1 : 0;
    result.position = response.position();
    result.durable_position = response.durable_position();
    first += count;
  }
  return result;
}

absl::StatusOr<v1::Session> SessionHandle::Current(absl::Time deadline) {
  v1::GetSessionRequest request;
  request.set_session_id(id_);
  v1::Session session;
  const absl::Status status =
      transport_->Call(&Transport::Stub::GetSession, id_, request, &session, deadline);
  if (!status.ok()) return status;
  if (session.generation() != generation_ || session.layer_positions_size() != layers()) {
    return absl::AbortedError(
        absl::StrCat("session ", id_, " has another generation than this handle; attach again"));
  }
  return session;
}

absl::StatusOr<v1::Session> SessionHandle::Refresh(const CallOptions& call) {
  auto session = Current(transport_->DeadlineFor(call));
  if (!session.ok()) return session.status();
  for (int layer = 0; layer < session->layer_positions_size(); ++layer) {
    ledger_->SetAcknowledged(layer, session->layer_positions(layer));
    if (layer < session->durable_layer_positions_size()) {
      ledger_->RaiseDurable(layer, session->durable_layer_positions(layer));
    }
  }
  return session;
}

absl::Status SessionHandle::Flush(const CallOptions& call) {
  v1::FlushSessionRequest request;
  request.set_session_id(id_);
  v1::FlushSessionResponse response;
  const absl::Time deadline = transport_->DeadlineFor(call);
  const absl::Status status =
      transport_->Call(&Transport::Stub::FlushSession, id_, request, &response, deadline);
  if (!status.ok()) return status;
  // The request names no generation. One that has not changed by now was flushed.
  if (const auto session = Current(deadline); !session.ok()) return session.status();
  NoteDurable(response.positions());
  return absl::OkStatus();
}

// Layers that the session does not have are the server's mistake and are passed over.
void SessionHandle::NoteDurable(
    const google::protobuf::RepeatedPtrField<v1::LayerPosition>& positions) {
  for (const v1::LayerPosition& entry : positions) {
    if (entry.layer() < 0 || entry.layer() >= layers()) continue;
    ledger_->RaiseDurable(entry.layer(), entry.durable_position());
  }
}

absl::StatusOr<std::unique_ptr<Stream>> SessionHandle::OpenStream(const StreamOptions& options) {
  return Stream::Open(transport_, {id_, generation_, shapes_, limits_, server_limits_, ledger_},
                      options);
}

}  // namespace attnd::client
