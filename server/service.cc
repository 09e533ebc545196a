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
void AnswerSession(UnaryCall& call, absl::StatusOr<v1::Session> session, v1::Session& response) {
  const absl::Status status = session.status();
  if (status.ok()) response = *std::move(session);
  call.Answer(status);
}

}  // namespace

grpc::ServerUnaryReactor* Service::CreateSession(grpc::CallbackServerContext* context,
                                                 const v1::CreateSessionRequest* request,
                                                 v1::Session* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kCreateSession, services_);
  AnswerSession(*call, DoCreate(*request), *response);
  return call;
}

absl::StatusOr<v1::Session> Service::DoCreate(const v1::CreateSessionRequest& request) {
  absl::Status accepting = messages_.CheckAccepting();
  if (!accepting.ok()) return accepting;
  const std::string id = request.session_id().empty() ? sessions_.NewId() : request.session_id();
  absl::Status valid = CheckSessionId(id);
  if (!valid.ok()) return valid;
  absl::StatusOr<SessionPlan> plan = PlanSession(request.config(), services_.options, &maps_);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<SessionPtr> session = sessions_.Create(KeyOf(id), *std::move(plan));
  if (!session.ok()) return messages_.Refused(session.status());
  return (*session)->Describe();
}

grpc::ServerUnaryReactor* Service::GetSession(grpc::CallbackServerContext* context,
                                              const v1::GetSessionRequest* request,
                                              v1::Session* response) {
  auto* call = new UnaryCall(*context, RpcMethod::kGetSession, services_);
  absl::StatusOr<SessionPtr> session = sessions_.Find(KeyOf(request->session_id()));
  if (session.ok()) *response = (*session)->Describe();
  call->Answer(session.status());
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
  const SessionTable::Page page = sessions_.List(
      Session::kDefaultTenant, request.page_token(),
      request.page_size() == 0 ? kDefaultPage : request.page_size(), request.labels());
  std::int64_t bytes = kMaxPageToken;
  for (const SessionPtr& session : page.sessions) {
    v1::Session described = session->Describe();
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
  AnswerSession(*call, DoUpdate(*request), *response);
  return call;
}

absl::StatusOr<v1::Session> Service::DoUpdate(const v1::UpdateSessionRequest& request) {
  absl::Duration time_to_live;
  if (request.has_time_to_live()) {
    absl::StatusOr<absl::Duration> asked = TimeToLive(request.time_to_live(), services_.options);
    if (!asked.ok()) return asked.status();
    time_to_live = *asked;
  }
  absl::Status labels = CheckLabels(request.labels().labels());
  if (!labels.ok()) return labels;
  absl::StatusOr<SessionPtr> session = sessions_.Update(
      KeyOf(request.session_id()), request.has_time_to_live() ? &time_to_live : nullptr,
      request.has_labels() ? &request.labels().labels() : nullptr);
  if (!session.ok()) return session.status();
  return (*session)->Describe();
}

grpc::ServerUnaryReactor* Service::DeleteSession(grpc::CallbackServerContext* context,
                                                 const v1::DeleteSessionRequest* request,
                                                 v1::DeleteSessionResponse* /*response*/) {
  auto* call = new UnaryCall(*context, RpcMethod::kDeleteSession, services_);
  call->Answer(sessions_.Delete(KeyOf(request->session_id())));
  return call;
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
  return StreamCall::Start(*context, services_, messages_, sessions_);
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
