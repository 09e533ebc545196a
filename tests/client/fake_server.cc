#include "tests/client/fake_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "google/rpc/status.pb.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "tests/client/fake_error.h"

namespace attnd::client {
namespace {

google::rpc::Status ToRpc(const grpc::Status& status) {
  google::rpc::Status rpc;
  if (!rpc.ParseFromString(status.error_details())) rpc.Clear();
  rpc.set_code(static_cast<int>(status.error_code()));
  rpc.set_message(status.error_message());
  return rpc;
}

}  // namespace

FakeServer::FakeServer() {
  limits.set_max_message_bytes(8 << 20);
  limits.set_max_response_bytes(8 << 20);
  limits.set_max_stream_messages(64);
  limits.set_max_stream_bytes(8 << 20);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  target_ = "127.0.0.1:" + std::to_string(port);
}

FakeServer::~FakeServer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
}

void FakeServer::FailNext(std::vector<grpc::Status> statuses) {
  std::lock_guard lock(mutex_);
  fail_next_.insert(fail_next_.end(), statuses.begin(), statuses.end());
}

void FakeServer::DropNextAnswers(int count) {
  std::lock_guard lock(mutex_);
  drop_next_ = count;
}

void FakeServer::SetStreamGate(bool open) {
  std::lock_guard lock(mutex_);
  stream_gate_open_ = open;
  changed_.notify_all();
}

void FakeServer::EndStreamsAfter(int answers, grpc::Status status) {
  std::lock_guard lock(mutex_);
  end_streams_after_ = answers;
  end_streams_with_ = std::move(status);
}

void FakeServer::BeginStreamsWithAnAnswer() {
  std::lock_guard lock(mutex_);
  unasked_answers_ = true;
}

void FakeServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void FakeServer::RaiseGenerations() {
  std::lock_guard lock(mutex_);
  sessions_.RaiseGenerations();
}

FakeServer::Seen FakeServer::seen() {
  std::lock_guard lock(mutex_);
  Seen seen = seen_;
  seen.applied_messages = sessions_.applied_messages();
  seen.replayed_messages = sessions_.replayed_messages();
  return seen;
}

std::int64_t FakeServer::PositionOf(const std::string& session, int layer) {
  std::lock_guard lock(mutex_);
  return sessions_.PositionOf(session, layer);
}

grpc::Status FakeServer::Enter(grpc::ServerContext* context, std::int64_t bytes,
                               bool* lose_answer) {
  std::lock_guard lock(mutex_);
  ++seen_.calls;
  seen_.time_left = context->deadline() - std::chrono::system_clock::now();
  seen_.largest_request = std::max(seen_.largest_request, bytes);
  const auto [begin, end] = context->client_metadata().equal_range("x-attnd-session");
  for (auto it = begin; it != end; ++it) {
    seen_.session_headers.emplace(it->second.data(), it->second.size());
  }
  if (!fail_next_.empty()) {
    grpc::Status status = fail_next_.front();
    fail_next_.pop_front();
    if (!status.ok()) return status;
  }
  *lose_answer = drop_next_ > 0;
  if (*lose_answer) --drop_next_;
  if (bytes > limits.max_message_bytes()) {
    return FakeError(grpc::StatusCode::RESOURCE_EXHAUSTED, "INVALID_FIELD", "message too large");
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::Leave(const grpc::Status& status, std::int64_t bytes, bool lose_answer) {
  std::lock_guard lock(mutex_);
  if (lose_answer) return {grpc::StatusCode::UNAVAILABLE, "the answer was lost"};
  if (status.ok()) seen_.largest_answer = std::max(seen_.largest_answer, bytes);
  return status;
}

grpc::Status FakeServer::DoAppend(const v1::AppendRequest& request, v1::AppendResponse* response) {
  std::lock_guard lock(mutex_);
  return sessions_.Append(request, response);
}

grpc::Status FakeServer::DoAttend(const v1::AttendRequest& request, v1::AttendResponse* response) {
  std::lock_guard lock(mutex_);
  return sessions_.Attend(request, {limits.max_response_bytes(), extra_answer_bytes_per_row},
                          response);
}

grpc::Status FakeServer::DoStep(const v1::StepRequest& request, v1::StepResponse* response) {
  std::lock_guard lock(mutex_);
  return sessions_.Step(request, {limits.max_response_bytes(), extra_answer_bytes_per_row},
                        response);
}

grpc::Status FakeServer::CreateSession(grpc::ServerContext* context,
                                       const v1::CreateSessionRequest* request,
                                       v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  const auto status = sessions_.Create(*request, response);
  lock.unlock();
  return Leave(status, 0, lose_answer);
}

grpc::Status FakeServer::GetSession(grpc::ServerContext* context,
                                    const v1::GetSessionRequest* request, v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  return sessions_.Get(*request, response);
}

grpc::Status FakeServer::ListSessions(grpc::ServerContext* context,
                                      const v1::ListSessionsRequest* request,
                                      v1::ListSessionsResponse* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  sessions_.List(*request, response);
  return grpc::Status::OK;
}

grpc::Status FakeServer::UpdateSession(grpc::ServerContext* context,
                                       const v1::UpdateSessionRequest* request,
                                       v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  return sessions_.Update(*request, response);
}

grpc::Status FakeServer::DeleteSession(grpc::ServerContext* context,
                                       const v1::DeleteSessionRequest* request,
                                       v1::DeleteSessionResponse*) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  {
    std::lock_guard lock(mutex_);
    sessions_.Delete(*request);
  }
  return Leave(grpc::Status::OK, 0, lose_answer);
}

grpc::Status FakeServer::FlushSession(grpc::ServerContext* context,
                                      const v1::FlushSessionRequest* request,
                                      v1::FlushSessionResponse* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  const auto status = sessions_.Flush(*request, response);
  lock.unlock();
  return Leave(status, 0, lose_answer);
}

grpc::Status FakeServer::Append(grpc::ServerContext* context, const v1::AppendRequest* request,
                                v1::AppendResponse* response) {
  bool lose_answer = false;
  const auto size = static_cast<std::int64_t>(request->ByteSizeLong());
  if (const auto status = Enter(context, size, &lose_answer); !status.ok()) return status;
  const auto status = DoAppend(*request, response);
  return Leave(status, static_cast<std::int64_t>(response->ByteSizeLong()), lose_answer);
}

grpc::Status FakeServer::Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                                v1::AttendResponse* response) {
  bool lose_answer = false;
  const auto size = static_cast<std::int64_t>(request->ByteSizeLong());
  if (const auto status = Enter(context, size, &lose_answer); !status.ok()) return status;
  const auto status = DoAttend(*request, response);
  return Leave(status, static_cast<std::int64_t>(response->ByteSizeLong()), lose_answer);
}

grpc::Status FakeServer::Step(grpc::ServerContext* context, const v1::StepRequest* request,
                              v1::StepResponse* response) {
  bool lose_answer = false;
  const auto size = static_cast<std::int64_t>(request->ByteSizeLong());
  if (const auto status = Enter(context, size, &lose_answer); !status.ok()) return status;
  const auto status = DoStep(*request, response);
  return Leave(status, static_cast<std::int64_t>(response->ByteSizeLong()), lose_answer);
}

grpc::Status FakeServer::Stream(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) {
  {
    std::lock_guard lock(mutex_);
    if (unasked_answers_) stream->Write(v1::StreamResponse());
  }
  v1::StreamRequest request;
  for (int answers = 0; stream->Read(&request); ++answers) {
    bool lose_answer = false;
    grpc::Status status =
        Enter(context, static_cast<std::int64_t>(request.ByteSizeLong()), &lose_answer);
    v1::StreamResponse response;
    response.set_id(request.id());
    if (status.ok() && request.has_append()) {
      status = DoAppend(request.append(), response.mutable_append());
    } else if (status.ok() && request.has_attend()) {
      status = DoAttend(request.attend(), response.mutable_attend());
    } else if (status.ok()) {
      status = DoStep(request.step(), response.mutable_step());
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stream_gate_open_ || stopping_; });
      if (answers == end_streams_after_) return end_streams_with_;
    }
    if (!status.ok()) {
      response.clear_message();
      *response.mutable_status() = ToRpc(status);
    }
    stream->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::PutFeatureMap(grpc::ServerContext* context,
                                       grpc::ServerReader<v1::PutFeatureMapRequest>* reader,
                                       v1::PutFeatureMapResponse* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  v1::PutFeatureMapRequest request;
  if (!reader->Read(&request)) return {grpc::StatusCode::INVALID_ARGUMENT, "no header"};
  const v1::FeatureMapHeader header = request.header();
  response->set_sha256(header.sha256());
  response->set_bytes(header.payload_bytes());
  {
    std::lock_guard lock(mutex_);
    response->set_already_there(maps_.count(header.sha256()) > 0);
  }
  if (response->already_there()) return grpc::Status::OK;
  std::string payload;
  std::size_t largest = 0;
  while (reader->Read(&request)) {
    payload += request.chunk();
    largest = std::max(largest, request.chunk().size());
  }
  if (static_cast<std::int64_t>(payload.size()) != header.payload_bytes()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "payload_bytes"};
  }
  {
    std::lock_guard lock(mutex_);
    maps_.insert(header.sha256());
    seen_.map_header = header;
    seen_.map_payload = payload;
    seen_.largest_chunk = largest;
  }
  return Leave(grpc::Status::OK, 0, lose_answer);
}

grpc::Status FakeServer::GetServerInfo(grpc::ServerContext* context,
                                       const v1::GetServerInfoRequest*, v1::ServerInfo* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  response->set_version("0.1.0");
  *response->mutable_limits() = limits;
  return grpc::Status::OK;
}

}  // namespace attnd::client
