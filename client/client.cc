#include "client/client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/duration.h"
#include "client/feature_map.h"
#include "client/session.h"
#include "client/transport.h"

namespace attnd::client {
namespace {

// The largest chunk of the contract.
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 20;

absl::Status RequireId(const std::string& id) {
  return id.empty() ? absl::InvalidArgumentError("session id is empty") : absl::OkStatus();
}

}  // namespace

std::string NewSessionId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(device(), absl::kZeroPad8));
  return id;
}

Client::Client(std::shared_ptr<Transport> transport, v1::ServerInfo info)
    : transport_(std::move(transport)), info_(std::move(info)) {}

absl::StatusOr<std::shared_ptr<Client>> Client::Connect(ClientOptions options) {
  auto transport = std::make_shared<Transport>(std::move(options));
  auto info = transport->Info(transport->DeadlineFor({}));
  if (!info.ok()) return info.status();
  return std::shared_ptr<Client>(new Client(std::move(transport), *std::move(info)));
}

absl::StatusOr<std::shared_ptr<SessionHandle>> Client::CreateSession(
    const v1::SessionConfig& config, const std::string& id, const CallOptions& call) {
  v1::CreateSessionRequest request;
  request.set_session_id(id.empty() ? NewSessionId() : id);
  *request.mutable_config() = config;
  v1::Session session;
  const absl::Status status =
      transport_->Call(&Transport::Stub::CreateSession, request.session_id(), request, &session,
                       transport_->DeadlineFor(call));
  if (!status.ok()) return status;
  return std::make_shared<SessionHandle>(transport_, info_.limits(), session);
}

absl::StatusOr<std::shared_ptr<SessionHandle>> Client::AttachSession(const std::string& id,
                                                                     const CallOptions& call) {
  auto session = GetSession(id, call);
  if (!session.ok()) return session.status();
  return std::make_shared<SessionHandle>(transport_, info_.limits(), *session);
}

absl::StatusOr<v1::PutFeatureMapResponse> Client::PutFeatureMap(const FeatureMapWeights& weights,
                                                                const std::string& session_id,
                                                                const CallOptions& call) {
  const auto header = HeaderOf(weights);
  if (!header.ok()) return header.status();
  // A message is a chunk and its tag.
  const std::int64_t chunk_bytes = std::clamp<std::int64_t>(
      std::min(transport_->options().target_request_bytes, info_.limits().max_message_bytes() - 16),
      1, kMaxChunkBytes);
  v1::PutFeatureMapResponse response;
  const absl::Status status = transport_->Attempt(
      session_id, transport_->DeadlineFor(call), transport_->options().retry,
      [&](grpc::ClientContext& context) {
        response.Clear();
        return Upload(transport_->stub(), context, *header, weights, chunk_bytes, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& id, const CallOptions& call) {
  if (const absl::Status status = RequireId(id); !status.ok()) return status;
  v1::GetSessionRequest request;
  request.set_session_id(id);
  v1::Session session;
  const absl::Status status = transport_->Call(&Transport::Stub::GetSession, id, request, &session,
                                               transport_->DeadlineFor(call));
  if (!status.ok()) return status;
  return session;
}

absl::StatusOr<v1::ListSessionsResponse> Client::ListSessions(const ListOptions& options) {
  v1::ListSessionsRequest request;
  request.set_page_size(options.page_size);
  request.set_page_token(options.page_token);
  request.mutable_labels()->insert(options.labels.begin(), options.labels.end());
  v1::ListSessionsResponse response;
  const absl::Status status = transport_->Call(&Transport::Stub::ListSessions, "", request,
                                               &response, transport_->DeadlineFor(options.call));
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::Session> Client::UpdateSession(const std::string& id,
                                                  const SessionUpdate& update,
                                                  const CallOptions& call) {
  if (const absl::Status status = RequireId(id); !status.ok()) return status;
  v1::UpdateSessionRequest request;
  request.set_session_id(id);
  if (update.time_to_live.has_value()) {
    *request.mutable_time_to_live() = ToProto(*update.time_to_live);
  }
  if (update.labels.has_value()) {
    request.mutable_labels()->mutable_labels()->insert(update.labels->begin(),
                                                       update.labels->end());
  }
  v1::Session session;
  const absl::Status status = transport_->Call(&Transport::Stub::UpdateSession, id, request,
                                               &session, transport_->DeadlineFor(call));
  if (!status.ok()) return status;
  return session;
}

absl::Status Client::DeleteSession(const std::string& id, const CallOptions& call) {
  if (const absl::Status status = RequireId(id); !status.ok()) return status;
  v1::DeleteSessionRequest request;
  request.set_session_id(id);
  v1::DeleteSessionResponse response;
  return transport_->Call(&Transport::Stub::DeleteSession, id, request, &response,
                          transport_->DeadlineFor(call));
}

absl::StatusOr<v1::FlushSessionResponse> Client::FlushSession(const std::string& id,
                                                              const CallOptions& call) {
  if (const absl::Status status = RequireId(id); !status.ok()) return status;
  v1::FlushSessionRequest request;
  request.set_session_id(id);
  v1::FlushSessionResponse response;
  const absl::Status status = transport_->Call(&Transport::Stub::FlushSession, id, request,
                                               &response, transport_->DeadlineFor(call));
  if (!status.ok()) return status;
  return response;
}

}  // namespace attnd::client
