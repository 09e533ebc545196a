#include "server/message_handler.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/append_job.h"
#include "server/error.h"
#include "server/step_job.h"

namespace attnd::server {
namespace {

std::optional<RejectReason> Rejection(v1::ErrorReason reason) {
  switch (reason) {
    case v1::QUEUE_FULL:
      return RejectReason::kQueueFull;
    case v1::INFLIGHT_BYTES:
      return RejectReason::kInflightBytes;
    case v1::TOO_MANY_SESSIONS:
      return RejectReason::kTooManySessions;
    case v1::STATE_BYTES:
      return RejectReason::kStateBytes;
    case v1::RESPONSE_TOO_LARGE:
      return RejectReason::kResponseTooLarge;
    case v1::SLOW_READER:
      return RejectReason::kSlowReader;
    case v1::FEATURE_MAP_BYTES:
      return RejectReason::kFeatureMapBytes;
    case v1::SHUTTING_DOWN:
      return RejectReason::kShuttingDown;
    default:
      return std::nullopt;
  }
}

// Memory to reserve for a mutation. A retry of what is there needs none, and must not be refused
// when memory is short.
std::int64_t NeededBytes(const Session& session, const std::vector<LayerSlice>& slices,
                         std::int64_t answer_bytes) {
  for (const LayerSlice& slice : slices) {
    const std::int64_t position = slice.span.position;
    if (position < session.position(slice.span.layer) || position > kMostPosition) return 0;
  }
  return Mutation::EstimateBytes(session, slices) + answer_bytes;
}

// A message of a stream runs in place only if it is brief: the stream reads no further meanwhile.
Session::Place PlaceFor(Operations operations, Transport transport) {
  const Operations most = transport == Transport::kUnary ? kShortOperations : kBriefOperations;
  return operations <= most ? Session::Place::kHereIfIdle : Session::Place::kWorker;
}

absl::Status CheckQueryPositions(const v1::AttendRequest& request, std::int64_t queries,
                                 bool required) {
  if (request.query_positions().empty() && !required) return absl::OkStatus();
  if (request.query_positions_size() != queries) {
    return Error(v1::INVALID_FIELD,
                 absl::StrCat("query_positions holds ", request.query_positions_size(),
                              " numbers; it must hold one per query, ", queries,
                              required ? "" : ", or none"));
  }
  for (const std::int64_t position : request.query_positions()) {
    if (position < 0) {
      return Error(v1::INVALID_FIELD,
                   absl::StrCat("query_positions holds ", position, "; each must be at least 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MessageHandler::ShuttingDown() {
  return RetryableError(v1::SHUTTING_DOWN, "the server is shutting down", absl::Seconds(1));
}

void MessageHandler::Drain() {
  draining_.store(true);
  table_.EndWaits(ShuttingDown());
}

absl::Status MessageHandler::CheckAccepting() const {
  return draining_.load() ? ShuttingDown() : absl::OkStatus();
}

absl::Status MessageHandler::Refused(const absl::Status& status) {
  if (const auto rejection = Rejection(ReasonOf(status))) services_.metrics.AddRejected(*rejection);
  return status;
}

void MessageHandler::WithSession(const std::string& id,
                                 const google::protobuf::MessageLite& request,
                                 const Answered& answered,
                                 std::function<absl::Status(const SessionPtr&)> start) {
  absl::Status valid = CheckAccepting();
  valid.Update(CheckSessionId(id));
  if (!valid.ok()) {
    answered(valid, {});
    return;
  }
  const SessionKey key = {Session::kDefaultTenant, id};
  const absl::StatusOr<SessionPtr> here = table_.Find(key);
  if (here.ok()) {
    const absl::Status started = start(*here);
    if (!started.ok()) answered(started, {});
    return;
  }
  // What waits for a session that has to be read holds its request.
  absl::StatusOr<Admission::Ticket> admitted =
      services_.admission.Admit(static_cast<std::int64_t>(request.ByteSizeLong()));
  if (!admitted.ok()) {
    answered(admitted.status(), {});
    return;
  }
  const auto ticket = std::make_shared<Admission::Ticket>(*std::move(admitted));
  sessions_.Get(
      key, [answered, ticket, start = std::move(start)](const absl::StatusOr<SessionPtr>& session) {
        *ticket = {};
        const absl::Status started = session.ok() ? start(*session) : session.status();
        if (!started.ok()) answered(started, {});
      });
}

// Counts refusals and logs failures on the way to `answered`.
Answered MessageHandler::Watched(const char* what, const std::string& session_id,
                                 Answered answered) {
  // An id that is longer names no session.
  constexpr std::size_t kShown = 128;
  return [this, what, session_id = session_id.substr(0, kShown), answered = std::move(answered)](
             const absl::Status& status, Admission::Ticket ticket) {
    if (!status.ok()) {
      Refused(status).IgnoreError();
      failures_.Write(LogLevel::kWarning, what,
                      {{"session", session_id},
                       {"code", absl::StatusCodeToString(status.code())},
                       {"reason", v1::ErrorReason_Name(ReasonOf(status))},
                       {"message", std::string(status.message())}});
    }
    answered(status, std::move(ticket));
  };
}

void MessageHandler::Append(CallOrigin origin, const v1::AppendRequest& request,
                            v1::AppendResponse& response, Answered answered) {
  Answered watched = Watched("append failed", request.session_id(), std::move(answered));
  WithSession(
      request.session_id(), request, watched,
      [this, origin = std::move(origin), &request, &response, watched](const SessionPtr& session) {
        return StartAppend(session, origin, request, response, watched);
      });
}

void MessageHandler::Attend(CallOrigin origin, const v1::AttendRequest& request,
                            v1::AttendResponse& response, Answered answered) {
  Answered watched = Watched("attend failed", request.session_id(), std::move(answered));
  WithSession(
      request.session_id(), request, watched,
      [this, origin = std::move(origin), &request, &response, watched](const SessionPtr& session) {
        return StartAttend(session, origin, request, response, watched);
      });
}

void MessageHandler::Step(CallOrigin origin, const v1::StepRequest& request,
                          v1::StepResponse& response, Answered answered) {
  Answered watched = Watched("step failed", request.session_id(), std::move(answered));
  WithSession(
      request.session_id(), request, watched,
      [this, origin = std::move(origin), &request, &response, watched](const SessionPtr& session) {
        return StartStep(session, origin, request, response, watched);
      });
}

absl::Status MessageHandler::StartAppend(const SessionPtr& session, CallOrigin origin,
                                         const v1::AppendRequest& request,
                                         v1::AppendResponse& response, const Answered& answered) {
  absl::Status generation = session->CheckGeneration(request.generation());
  if (!generation.ok()) return generation;
  if (request.tokens().empty()) {
    return Error(v1::INVALID_FIELD, "tokens is empty; at least one layer's tokens are needed");
  }
  std::vector<LayerSlice> slices;
  std::vector<bool> seen(static_cast<std::size_t>(session->layers()));
  for (int i = 0; i < request.tokens_size(); ++i) {
    absl::StatusOr<LayerSlice> slice =
        CheckTokens(*session, request.tokens(i), absl::StrCat("tokens[", i, "]"));
    if (!slice.ok()) return slice.status();
    const auto layer = static_cast<std::size_t>(slice->span.layer);
    if (seen[layer]) {
      return Error(v1::INVALID_FIELD, absl::StrCat("tokens[", i, "].layer is ", layer,
                                                   "; each layer may stand once in a message"));
    }
    seen[layer] = true;
    slices.push_back(*slice);
  }
  absl::StatusOr<Admission::Ticket> ticket =
      services_.admission.Admit(static_cast<std::int64_t>(request.ByteSizeLong()));
  if (!ticket.ok()) return ticket.status();
  const std::int64_t bytes = NeededBytes(*session, slices, 0);
  absl::Status reserved = services_.budget.Reserve(bytes);
  if (!reserved.ok()) return reserved;

  Operations operations = 0;
  for (const LayerSlice& slice : slices) {
    operations +=
        AppendOperations(session->engine(slice.span.layer), slice.span.position, slice.span.count);
  }
  const Session::Place place = PlaceFor(operations, origin.transport);
  Call call(services_, std::move(origin), CallKind::kAppend, session, slices.front().span.layer,
            *std::move(ticket), answered);
  session->EnterLane(
      std::make_unique<AppendJob>(std::move(call), request, std::move(slices), bytes, response),
      place);
  return absl::OkStatus();
}

absl::Status MessageHandler::StartAttend(const SessionPtr& session, CallOrigin origin,
                                         const v1::AttendRequest& request,
                                         v1::AttendResponse& response, const Answered& answered) {
  const std::int64_t layer = request.layer();
  absl::Status valid = session->CheckLayer(layer);
  if (!valid.ok()) return valid;
  const engine::LayerShape& shape = session->engine(layer).shape();
  absl::StatusOr<RowsView> queries =
      CheckRows(request.queries(), "queries", shape.query_heads, shape.key_dim);
  if (!queries.ok()) return queries.status();
  absl::StatusOr<AnswerSpec> spec =
      PlanAnswer(request.options(), session->group(layer),
                 request.has_accuracy() ? &request.accuracy() : nullptr);
  if (!spec.ok()) return spec.status();
  const engine::PositionUse use = session->engine(layer).position_use();
  valid = CheckQueryPositions(request, queries->rows, use == engine::PositionUse::kRequired);
  valid.Update(CheckAnswerFits(*spec, queries->rows, services_.options.max_response_bytes));
  if (request.min_position() < 0) {
    valid.Update(Error(v1::INVALID_FIELD, absl::StrCat("min_position is ", request.min_position(),
                                                       "; it must be at least 0")));
  }
  if (!valid.ok()) return valid;
  LayerStatePtr state = session->layer(layer);
  const bool reached = state->position() >= request.min_position();
  if (!reached && !request.wait()) {
    return Error(v1::POSITION_NOT_REACHED,
                 absl::StrCat("min_position is ", request.min_position(), "; layer ", layer,
                              " is at ", state->position()),
                 {{"layer", absl::StrCat(layer)}, {"position", absl::StrCat(state->position())}});
  }
  const auto request_bytes = static_cast<std::int64_t>(request.ByteSizeLong());
  // A wait for more tokens than a layer can hold is bounded here; it will not come to an end.
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
  const std::int64_t plan_bytes = session->engine(layer).PlanBytes(
      std::min(std::max(state->position(), request.min_position()), kMostTokens),
      std::min(queries->rows, AttendJob::GroupQueries(session->group(layer))), spec->top_k);
  const std::int64_t bytes = request_bytes + WorkBytes(*spec, *queries, plan_bytes);
  absl::StatusOr<Admission::Ticket> ticket =
      reached ? services_.admission.Admit(bytes) : services_.waits.Admit(request_bytes);
  if (!ticket.ok()) return ticket.status();

  const bool positions = use != engine::PositionUse::kNone && !request.query_positions().empty();
  const Transport transport = origin.transport;
  const std::shared_ptr<Cancellation> cancellation = origin.cancellation;
  auto job = std::make_unique<AttendJob>(
      Call(services_, std::move(origin), CallKind::kAttend, session, layer, *std::move(ticket),
           answered),
      layer, *queries, positions ? request.query_positions().data() : nullptr, *spec, response);
  if (reached) {
    job->Observe(std::move(state));
    const Operations operations = job->operations();
    const bool brief = operations <= kBriefOperations;
    session->Start(std::move(job), brief ? Session::Place::kHere : PlaceFor(operations, transport));
  } else {
    AttendAtPosition(session, layer, request.min_position(), bytes, *cancellation, std::move(job));
    // A drain that began after the check above may have ended the waits before this one.
    absl::Status accepting = CheckAccepting();
    if (!accepting.ok()) session->EndWaits(accepting);
  }
  return absl::OkStatus();
}

// Queues the job once the layer has reached the position and its `bytes` are admitted; answers it
// when that will not happen or when the client has gone away.
void MessageHandler::AttendAtPosition(const SessionPtr& session, std::int64_t layer,
                                      std::int64_t position, std::int64_t bytes,
                                      Cancellation& cancellation, std::unique_ptr<AttendJob> job) {
  // Whoever takes the job out runs it or answers it: the wait's end, or the cancellation if it
  // comes first. CancelWait decides, so that there is no race for it.
  auto waiting = std::make_shared<std::unique_ptr<AttendJob>>(std::move(job));
  const auto reached = [this, session, layer, bytes, waiting](const absl::Status& reason) {
    std::unique_ptr<AttendJob> ready = std::move(*waiting);
    absl::Status status = reason;
    if (status.ok()) {
      absl::StatusOr<Admission::Ticket> ticket = services_.admission.Admit(bytes);
      status = ticket.status();
      if (ticket.ok()) ready->call().Hold(*std::move(ticket));
    }
    if (status.ok()) {
      ready->Observe(session->layer(layer));
      session->Start(std::move(ready), Session::Place::kWorker);
    } else {
      ready->call().Answer(status);
    }
  };
  const Session::WaitId wait = session->WhenPosition(layer, position, reached);
  // Outlives the wait, on a stream by far: it must not keep the session.
  cancellation.WhenCancelled([weak = std::weak_ptr<Session>(session), wait, waiting] {
    const SessionPtr waited = weak.lock();
    if (waited == nullptr || !waited->CancelWait(wait)) return;
    const std::unique_ptr<AttendJob> dropped = std::move(*waiting);
    absl::Status reason = dropped->call().StillWanted();
    dropped->call().Answer(reason.ok() ? absl::CancelledError("the client has gone away") : reason);
  });
}

absl::Status MessageHandler::StartStep(const SessionPtr& session, CallOrigin origin,
                                       const v1::StepRequest& request, v1::StepResponse& response,
                                       const Answered& answered) {
  absl::Status valid = session->CheckGeneration(request.generation());
  if (!valid.ok()) return valid;
  absl::StatusOr<LayerSlice> slice = CheckTokens(*session, request.tokens(), "tokens");
  if (!slice.ok()) return slice.status();
  const std::int64_t layer = slice->span.layer;
  if (session->group(layer).whole_batch) {
    return Error(
        v1::UNSUPPORTED,
        absl::StrCat("tokens.layer is ", layer,
                     ", whose kde mode is PAPER: it answers no Steps; Append, then Attend"));
  }
  const engine::LayerShape& shape = session->engine(layer).shape();
  absl::StatusOr<RowsView> queries =
      CheckRows(request.queries(), "queries", shape.query_heads, shape.key_dim);
  if (!queries.ok()) return queries.status();
  if (queries->rows != slice->span.count) {
    return Error(v1::BAD_TENSOR,
                 absl::StrCat("queries holds ", queries->rows,
                              " rows; it must hold one per token, ", slice->span.count));
  }
  absl::StatusOr<AnswerSpec> spec =
      PlanAnswer(request.options(), session->group(layer),
                 request.has_accuracy() ? &request.accuracy() : nullptr);
  if (!spec.ok()) return spec.status();
  valid = CheckAnswerFits(*spec, queries->rows, services_.options.max_response_bytes);
  if (!valid.ok()) return valid;
  const std::int64_t plan_bytes =
      session->engine(layer).PlanBytes(session->position(layer) + queries->rows,
                                       std::min(queries->rows, engine::kBlockTokens), spec->top_k);
  absl::StatusOr<Admission::Ticket> ticket = services_.admission.Admit(
      static_cast<std::int64_t>(request.ByteSizeLong()) + WorkBytes(*spec, *queries, plan_bytes));
  if (!ticket.ok()) return ticket.status();
  // The session keeps the answer for a retry.
  const std::int64_t bytes = NeededBytes(*session, {*slice}, AnswerBytes(*spec, queries->rows));
  absl::Status reserved = services_.budget.Reserve(bytes);
  if (!reserved.ok()) return reserved;

  const engine::TokenSpan& span = slice->span;
  const Operations operations =
      AppendOperations(session->engine(layer), span.position, span.count) +
      AttendOperations(session->engine(layer), session->position(layer) + span.count, span.count,
                       spec->top_k);
  const Session::Place place = PlaceFor(operations, origin.transport);
  Call call(services_, std::move(origin), CallKind::kStep, session, layer, *std::move(ticket),
            answered);
  session->EnterLane(
      std::make_unique<StepJob>(std::move(call), request, *slice, *queries, *spec, bytes, response),
      place);
  return absl::OkStatus();
}

}  // namespace attnd::server
