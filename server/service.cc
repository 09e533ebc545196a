#include "server/service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/put_feature_map_call.h"
#include "server/stream_call.h"
#include "server/unary_call.h"

namespace attnd::server {
namespace {

constexpr std::int32_t kDefaultPage = 100;
constexpr std::int32_t kMaxPage = 1000;
// Tag and length of a message within another, and the page token.
constexpr std::int64_t kFieldBytes = 8;
constexpr std::int64_t kMaxPageToken = 256;

SessionKey KeyOf(const std::string& id) { return {Session::kDefaultTenant, id}; }

Answered AnswerTo(UnaryCall* call) {
  return [call](const absl::Status& status, Admission::Ticket ticket) {
    call->Answer(status, std::move(ticket));
  };
}

// Answers with a session, or with why there is none.
SessionDirectory::Then AnswerWith(UnaryCall* call, v1::Session* response) {
  return [call, response](const absl::StatusOr<SessionPtr>& session) {
    if (session.ok()) *response = (*session)->Describe();
    call->Answer(session.status());
  };
}

}  // namespace

grpc::ServerUnaryReactor* Service::CreateSession(grpc::CallbackServerContext* context,
                                                 const v1::CreateSessionRequest* request,
                                                 v1::Session* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kCreateSession, services_);
  DoCreate(*request, AnswerWith(call, response));
  return call;
}

void Service::DoCreate(const v1::CreateSessionRequest& request, SessionDirectory::Then then) {
  const std::string id = request.session_id().empty() ? table_.NewId() : request.session_id();
  absl::Status valid = messages_.CheckAccepting();
  valid.Update(CheckSessionId(id));
  if (!valid.ok()) {
    then(valid);
    return;
  }
  absl::StatusOr<SessionPlan> plan = PlanSession(request.config(), services_.options, &maps_);
  if (!plan.ok()) {
    then(plan.status());
    return;
  }
  sessions_.Create(KeyOf(id), *std::move(plan),
                   [this, then = std::move(then)](const absl::StatusOr<SessionPtr>& session) {
                     messages_.Refused(session.status()).IgnoreError();
                     then(session);
                   });
}

grpc::ServerUnaryReactor* Service::GetSession(grpc::CallbackServerContext* context,
                                              const v1::GetSessionRequest* request,
                                              v1::Session* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kGetSession, services_);
  // What cannot be an id is not looked for in the store.
  absl::Status valid = CheckSessionId(request->session_id());
  if (valid.ok()) {
    sessions_.Get(KeyOf(request->session_id()), AnswerWith(call, response));
  } else {
    call->Answer(GoneError(request->session_id(), v1::UNKNOWN));
  }
  return call;
}

grpc::ServerUnaryReactor* Service::ListSessions(grpc::CallbackServerContext* context,
                                                const v1::ListSessionsRequest* request,
                                                v1::ListSessionsResponse* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kListSessions, services_);
  call->Answer(DoList(*request, *response));
  return call;
}

absl::Status Service::DoList(const v1::ListSessionsRequest& request,
                             v1::ListSessionsResponse& response) {
  if (request.page_size() < 0 || request.page_size() > kMaxPage) {
    return Error(v1::INVALID_FIELD, absl::StrCat("page_size is ", request.page_size(),
                                                 "; it must be 0 to ", kMaxPage));
  }
  absl::Status labels = CheckLabels(request.labels());
  if (!labels.ok()) return labels;
  // A page token is the id after which the page begins.
  SessionDirectory::Page page = sessions_.List(
      Session::kDefaultTenant, request.page_token(),
      request.page_size() == 0 ? kDefaultPage : request.page_size(), request.labels());
  std::int64_t bytes = kMaxPageToken;
  for (v1::Session& described : page.sessions) {
    bytes += static_cast<std::int64_t>(described.ByteSizeLong()) + kFieldBytes;
    if (response.sessions_size() > 0 && bytes > services_.options.max_response_bytes) {
      response.set_next_page_token(response.sessions().rbegin()->session_id());
      return absl::OkStatus();
    }
    *response.add_sessions() = std::move(described);
  }
  if (page.more) response.set_next_page_token(page.last_id);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* Service::UpdateSession(grpc::CallbackServerContext* context,
                                                 const v1::UpdateSessionRequest* request,
                                                 v1::Session* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kUpdateSession, services_);
  DoUpdate(*request, AnswerWith(call, response));
  return call;
}

void Service::DoUpdate(const v1::UpdateSessionRequest& request, SessionDirectory::Then then) {
  absl::Duration time_to_live;
  absl::Status valid;
  if (request.has_time_to_live()) {
    absl::StatusOr<absl::Duration> asked = TimeToLive(request.time_to_live(), services_.options);
    if (asked.ok()) time_to_live = *asked;
    valid = asked.status();
  }
  valid.Update(CheckLabels(request.labels().labels()));
  if (valid.ok() && !CheckSessionId(request.session_id()).ok()) {
    valid = GoneError(request.session_id(), v1::UNKNOWN);
  }
  if (!valid.ok()) {
    then(valid);
    return;
  }
  sessions_.Update(KeyOf(request.session_id()),
                   request.has_time_to_live() ? &time_to_live : nullptr,
                   request.has_labels() ? &request.labels().labels() : nullptr, std::move(then));
}

grpc::ServerUnaryReactor* Service::DeleteSession(grpc::CallbackServerContext* context,
                                                 const v1::DeleteSessionRequest* request,
                                                 v1::DeleteSessionResponse* /*response*/) {
  auto* call = new UnaryCall(*context, RpcMethod::kDeleteSession, services_);
  if (CheckSessionId(request->session_id()).ok()) {
    sessions_.Delete(KeyOf(request->session_id()),
                     [call](const absl::Status& deleted) { call->Answer(deleted); });
  } else {
    call->Answer(GoneError(request->session_id(), v1::UNKNOWN));
  }
  return call;
}

grpc::ServerUnaryReactor* Service::FlushSession(grpc::CallbackServerContext* context,
                                                const v1::FlushSessionRequest* request,
                                                v1::FlushSessionResponse* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kFlushSession, services_);
  absl::Status valid = messages_.CheckAccepting();
  valid.Update(CheckSessionId(request->session_id()));
  if (!valid.ok()) {
    call->Answer(valid);
    return call;
  }
  sessions_.Get(KeyOf(request->session_id()),
                [this, call, response](const absl::StatusOr<SessionPtr>& found) {
                  if (found.ok()) {
                    Flush(*found, *response, [call](const absl::Status& s) { call->Answer(s); });
                  } else {
                    call->Answer(found.status());
                  }
                });
  return call;
}

void Service::Flush(const SessionPtr& session, v1::FlushSessionResponse& response,
                    SessionStore::Done done) {
  if (session->ephemeral()) {
    done(Error(v1::UNSUPPORTED, absl::StrCat("session_id '", session->key().id,
                                             "' is EPHEMERAL: there is nothing to flush to")));
    return;
  }
  keeper_->Flush(
      session, [session, &response, done = std::move(done)](const absl::Status& flushed) {
        const v1::Session described = session->Describe();
        for (int layer = 0; flushed.ok() && layer < described.layer_positions_size(); ++layer) {
          v1::LayerPosition& position = *response.add_positions();
          position.set_layer(layer);
          position.set_position(described.layer_positions(layer));
          position.set_durable_position(described.durable_layer_positions(layer));
        }
        done(flushed);
      });
}

grpc::ServerUnaryReactor* Service::Append(grpc::CallbackServerContext* context,
                                          const v1::AppendRequest* request,
                                          v1::AppendResponse* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kAppend, services_);
  messages_.Append(call->origin(), *request, *response, AnswerTo(call));
  return call;
}

grpc::ServerUnaryReactor* Service::Attend(grpc::CallbackServerContext* context,
                                          const v1::AttendRequest* request,
                                          v1::AttendResponse* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kAttend, services_);
  messages_.Attend(call->origin(), *request, *response, AnswerTo(call));
  return call;
}

grpc::ServerUnaryReactor* Service::Step(grpc::CallbackServerContext* context,
                                        const v1::StepRequest* request,
                                        v1::StepResponse* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kStep, services_);
  messages_.Step(call->origin(), *request, *response, AnswerTo(call));
  return call;
}

grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamResponse>* Service::Stream(
    grpc::CallbackServerContext* context) {
  return StreamCall::Start(*context, services_, messages_, table_);
}

grpc::ServerReadReactor<v1::PutFeatureMapRequest>* Service::PutFeatureMap(
    grpc::CallbackServerContext* context, v1::PutFeatureMapResponse* response) {
  return PutFeatureMapCall::Start(*context, services_, messages_, maps_, *response);
}

grpc::ServerUnaryReactor* Service::GetServerInfo(grpc::CallbackServerContext* context,
                                                 const v1::GetServerInfoRequest* /*request*/,
                                                 v1::ServerInfo* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kGetServerInfo, services_);
  *response = info_;
  call->Answer(absl::OkStatus());
  return call;
}

}  // namespace attnd::server
