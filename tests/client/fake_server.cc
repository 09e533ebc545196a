#include "tests/client/fake_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"

namespace attnd::client {
namespace {

std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> floats(tensor.data().size() / sizeof(float));
  std::memcpy(floats.data(), tensor.data().data(), floats.size() * sizeof(float));
  return floats;
}

void SetTensor(const std::vector<float>& floats, std::initializer_list<std::int64_t> shape,
               v1::Tensor* tensor) {
  tensor->set_dtype(v1::F32);
  for (const std::int64_t size : shape) tensor->add_shape(size);
  tensor->set_data(
      std::string(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)));
}

google::rpc::Status ToRpc(const grpc::Status& status) {
  google::rpc::Status rpc;
  if (!rpc.ParseFromString(status.error_details())) rpc.Clear();
  rpc.set_code(static_cast<int>(status.error_code()));
  rpc.set_message(status.error_message());
  return rpc;
}

}  // namespace

grpc::Status FakeError(grpc::StatusCode code, const std::string& reason, const std::string& message,
                       const std::map<std::string, std::string>& metadata, int retry_milliseconds) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attnd");
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  details.add_details()->PackFrom(info);
  if (retry_milliseconds >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_milliseconds / 1000);
    retry.mutable_retry_delay()->set_nanos(retry_milliseconds % 1000 * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

FakeServer::FakeServer() {
  limits.set_max_message_bytes(8 << 20);
  limits.set_max_response_bytes(8 << 20);
  limits.set_max_stream_messages(64);
  limits.set_max_stream_bytes(8 << 20);
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

void FakeServer::RaiseGenerations() {
  std::lock_guard lock(mutex_);
  for (auto& [id, session] : sessions_) session.facts.set_generation(next_generation_++);
}

FakeServer::Seen FakeServer::seen() {
  std::lock_guard lock(mutex_);
  return seen_;
}

std::int64_t FakeServer::PositionOf(const std::string& session, int layer) {
  std::lock_guard lock(mutex_);
  return sessions_.at(session).layers.at(static_cast<std::size_t>(layer)).position;
}

grpc::Status FakeServer::Enter(grpc::ServerContext* context, std::int64_t bytes,
                               bool* lose_answer) {
  std::lock_guard lock(mutex_);
  ++seen_.calls;
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

grpc::Status FakeServer::Find(const std::string& id, Session** session) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    return FakeError(grpc::StatusCode::NOT_FOUND, "UNKNOWN", "session_id: '" + id + "' is unknown");
  }
  *session = &found->second;
  return grpc::Status::OK;
}

void FakeServer::Describe(const Session& session, v1::Session* response) {
  *response = session.facts;
  for (const Layer& layer : session.layers) response->add_layer_positions(layer.position);
}

grpc::Status FakeServer::CreateSession(grpc::ServerContext* context,
                                       const v1::CreateSessionRequest* request,
                                       v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  {
    std::lock_guard lock(mutex_);
    v1::SessionConfig config = request->config();
    for (v1::LayerGroup& group : *config.mutable_layer_groups()) {
      if (group.count() == 0) group.set_count(1);
      if (group.kv_heads() == 0) group.set_kv_heads(1);
      if (group.query_heads() == 0) group.set_query_heads(group.kv_heads());
      if (group.value_dim() == 0) group.set_value_dim(group.key_dim());
    }
    auto [found, created] = sessions_.try_emplace(request->session_id());
    Session& session = found->second;
    if (created) {
      session.facts.set_session_id(request->session_id());
      session.facts.set_generation(next_generation_++);
      *session.facts.mutable_config() = config;
      for (const v1::LayerGroup& group : config.layer_groups()) {
        for (int i = 0; i < group.count(); ++i) session.layers.push_back({.group = group});
      }
    } else if (session.facts.config().SerializeAsString() != config.SerializeAsString()) {
      return FakeError(grpc::StatusCode::ALREADY_EXISTS, "SESSION_EXISTS", "session_id: in use");
    }
    Describe(session, response);
  }
  return Leave(grpc::Status::OK, 0, lose_answer);
}

grpc::Status FakeServer::GetSession(grpc::ServerContext* context,
                                    const v1::GetSessionRequest* request, v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  Session* session = nullptr;
  if (const auto status = Find(request->session_id(), &session); !status.ok()) return status;
  Describe(*session, response);
  return grpc::Status::OK;
}

grpc::Status FakeServer::ListSessions(grpc::ServerContext* context,
                                      const v1::ListSessionsRequest* request,
                                      v1::ListSessionsResponse* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    if (id <= request->page_token()) continue;
    if (request->page_size() > 0 && response->sessions_size() == request->page_size()) {
      response->set_next_page_token(response->sessions().rbegin()->session_id());
      break;
    }
    Describe(session, response->add_sessions());
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::UpdateSession(grpc::ServerContext* context,
                                       const v1::UpdateSessionRequest* request,
                                       v1::Session* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  Session* session = nullptr;
  if (const auto status = Find(request->session_id(), &session); !status.ok()) return status;
  v1::SessionConfig* config = session->facts.mutable_config();
  if (request->has_time_to_live()) *config->mutable_time_to_live() = request->time_to_live();
  if (request->has_labels()) *config->mutable_labels() = request->labels().labels();
  Describe(*session, response);
  return grpc::Status::OK;
}

grpc::Status FakeServer::DeleteSession(grpc::ServerContext* context,
                                       const v1::DeleteSessionRequest* request,
                                       v1::DeleteSessionResponse*) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  {
    std::lock_guard lock(mutex_);
    sessions_.erase(request->session_id());
  }
  return Leave(grpc::Status::OK, 0, lose_answer);
}

grpc::Status FakeServer::CheckMutation(const v1::LayerTokens& tokens, std::uint64_t generation,
                                       const std::string& content, Session& session,
                                       bool* replayed) {
  if (generation != session.facts.generation()) {
    return FakeError(grpc::StatusCode::ABORTED, "STALE_GENERATION", "generation: is another one",
                     {{"generation", std::to_string(session.facts.generation())}});
  }
  const Layer& layer = session.layers.at(static_cast<std::size_t>(tokens.layer()));
  *replayed = false;
  if (tokens.position() == layer.position) return grpc::Status::OK;
  const auto message = layer.messages.find(tokens.position());
  if (message == layer.messages.end()) {
    return FakeError(
        grpc::StatusCode::OUT_OF_RANGE, "WRONG_POSITION",
        "position: " + std::to_string(tokens.position()) + ", the layer is at " +
            std::to_string(layer.position),
        {{"layer", std::to_string(tokens.layer())}, {"position", std::to_string(layer.position)}});
  }
  if (message->second != content) {
    return FakeError(grpc::StatusCode::ABORTED, "REPLAY_MISMATCH", "position: other data was here");
  }
  *replayed = true;
  return grpc::Status::OK;
}

void FakeServer::Apply(const v1::LayerTokens& tokens, const std::string& content, Layer* layer) {
  layer->messages[layer->position] = content;
  std::vector<float> values = Floats(tokens.values());
  const auto rows = static_cast<std::size_t>(tokens.values().shape(0));
  const std::size_t row = values.size() / rows;
  for (std::size_t i = 0; i < tokens.mask().size(); ++i) {
    if (tokens.mask()[i] == 0) std::fill_n(values.data() + i * row, row, 0.0F);
  }
  layer->values.insert(layer->values.end(), values.begin(), values.end());
  layer->position += tokens.values().shape(0);
  layer->last_step_position = -1;
}

grpc::Status FakeServer::Answer(const Layer& layer, const v1::Tensor& queries,
                                const v1::AnswerOptions& options, std::int64_t first_visible,
                                bool causal, v1::Answer* answer) {
  const std::int64_t n = queries.shape(0);
  const std::int64_t heads = layer.group.query_heads();
  const std::int64_t group = heads / layer.group.kv_heads();
  const std::int64_t dim = layer.group.value_dim();
  const std::int64_t row_bytes =
      heads * (4 * dim + (options.flags() ? 1 : 0) + 14 * options.top_k()) +
      extra_answer_bytes_per_row;
  const std::int64_t fits = (limits.max_response_bytes() - 1024) / row_bytes;
  if (n > fits) {
    return FakeError(grpc::StatusCode::RESOURCE_EXHAUSTED, "RESPONSE_TOO_LARGE",
                     "queries: too many", {{"max_queries", std::to_string(fits)}});
  }
  const std::vector<float> rows = Floats(queries);
  std::vector<float> sums(static_cast<std::size_t>(layer.group.kv_heads() * dim), 0.0F);
  std::vector<float> out;
  std::int64_t summed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t visible = first_visible + (causal ? i : 0);
    for (; summed < visible; ++summed) {
      for (std::size_t j = 0; j < sums.size(); ++j) {
        sums[j] += layer.values[static_cast<std::size_t>(summed) * sums.size() + j];
      }
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const float q = rows[static_cast<std::size_t>((i * heads + h) * layer.group.key_dim())];
      for (std::int64_t j = 0; j < dim; ++j) {
        out.push_back(q + sums[static_cast<std::size_t>(h / group * dim + j)]);
      }
    }
  }
  SetTensor(out, {n, heads, dim}, answer->mutable_outputs());
  if (options.flags()) answer->set_flags(std::string(static_cast<std::size_t>(n * heads), '\0'));
  if (options.top_k() > 0) {
    answer->mutable_top_k()->set_k(options.top_k());
    for (std::int64_t i = 0; i < n * heads * options.top_k(); ++i) {
      answer->mutable_top_k()->add_positions(i % options.top_k());
    }
    SetTensor(std::vector<float>(static_cast<std::size_t>(n * heads * options.top_k()), 1.0F),
              {n, heads, options.top_k()}, answer->mutable_top_k()->mutable_weights());
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::DoAppend(const v1::AppendRequest& request, v1::AppendResponse* response) {
  std::lock_guard lock(mutex_);
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  bool replayed = false;
  for (const v1::LayerTokens& tokens : request.tokens()) {
    const auto status = CheckMutation(tokens, request.generation(), tokens.SerializeAsString(),
                                      *session, &replayed);
    if (!status.ok()) return status;
  }
  response->set_replayed(replayed);
  ++(replayed ? seen_.replayed_messages : seen_.applied_messages);
  for (const v1::LayerTokens& tokens : request.tokens()) {
    Layer& layer = session->layers.at(static_cast<std::size_t>(tokens.layer()));
    if (!replayed) Apply(tokens, tokens.SerializeAsString(), &layer);
    v1::LayerPosition* position = response->add_positions();
    position->set_layer(tokens.layer());
    position->set_position(tokens.position() + tokens.keys().shape(0));
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::DoAttend(const v1::AttendRequest& request, v1::AttendResponse* response) {
  std::lock_guard lock(mutex_);
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  const Layer& layer = session->layers.at(static_cast<std::size_t>(request.layer()));
  if (layer.position < request.min_position()) {
    return FakeError(grpc::StatusCode::FAILED_PRECONDITION, "POSITION_NOT_REACHED",
                     "min_position: is not reached");
  }
  response->set_position(layer.position);
  return Answer(layer, request.queries(), request.options(), layer.position, false,
                response->mutable_answer());
}

grpc::Status FakeServer::DoStep(const v1::StepRequest& request, v1::StepResponse* response) {
  std::lock_guard lock(mutex_);
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  const std::string content =
      request.tokens().SerializeAsString() + request.queries().SerializeAsString();
  bool replayed = false;
  auto status = CheckMutation(request.tokens(), request.generation(), content, *session, &replayed);
  if (!status.ok()) return status;
  Layer& layer = session->layers.at(static_cast<std::size_t>(request.tokens().layer()));
  if (replayed) {
    if (layer.last_step_position != request.tokens().position()) {
      return FakeError(grpc::StatusCode::FAILED_PRECONDITION, "STEP_REPLAY_EXPIRED", "too late");
    }
    ++seen_.replayed_messages;
    *response = layer.last_step;
    response->set_replayed(true);
    return grpc::Status::OK;
  }
  Layer next = layer;
  Apply(request.tokens(), content, &next);
  status = Answer(next, request.queries(), request.options(), layer.position + 1, true,
                  response->mutable_answer());
  if (!status.ok()) return status;
  response->set_position(next.position);
  next.last_step_position = layer.position;
  next.last_step = *response;
  layer = std::move(next);
  ++seen_.applied_messages;
  return grpc::Status::OK;
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

grpc::Status FakeServer::GetServerInfo(grpc::ServerContext* context,
                                       const v1::GetServerInfoRequest*, v1::ServerInfo* response) {
  bool lose_answer = false;
  if (const auto status = Enter(context, 0, &lose_answer); !status.ok()) return status;
  response->set_version("0.1.0");
  *response->mutable_limits() = limits;
  return grpc::Status::OK;
}

}  // namespace attnd::client
