#include "tests/client/fake_sessions.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "tests/client/fake_error.h"

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

}  // namespace

grpc::Status FakeSessions::Create(const v1::CreateSessionRequest& request, v1::Session* response) {
  v1::SessionConfig config = request.config();
  for (v1::LayerGroup& group : *config.mutable_layer_groups()) {
    if (group.count() == 0) group.set_count(1);
    if (group.kv_heads() == 0) group.set_kv_heads(1);
    if (group.query_heads() == 0) group.set_query_heads(group.kv_heads());
    if (group.value_dim() == 0) group.set_value_dim(group.key_dim());
  }
  auto [found, created] = sessions_.try_emplace(request.session_id());
  Session& session = found->second;
  if (created) {
    session.facts.set_session_id(request.session_id());
    session.facts.set_generation(next_generation_++);
    *session.facts.mutable_config() = config;
    for (const v1::LayerGroup& group : config.layer_groups()) {
      for (int i = 0; i < group.count(); ++i) session.layers.emplace_back().group = group;
    }
  } else if (session.facts.config().SerializeAsString() != config.SerializeAsString()) {
    return FakeError(grpc::StatusCode::ALREADY_EXISTS, "SESSION_EXISTS", "session_id: in use");
  }
  Describe(session, response);
  return grpc::Status::OK;
}

grpc::Status FakeSessions::Get(const v1::GetSessionRequest& request, v1::Session* response) {
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  Describe(*session, response);
  return grpc::Status::OK;
}

void FakeSessions::List(const v1::ListSessionsRequest& request,
                        v1::ListSessionsResponse* response) {
  for (const auto& [id, session] : sessions_) {
    if (id <= request.page_token()) continue;
    if (request.page_size() > 0 && response->sessions_size() == request.page_size()) {
      response->set_next_page_token(response->sessions().rbegin()->session_id());
      break;
    }
    Describe(session, response->add_sessions());
  }
}

grpc::Status FakeSessions::Update(const v1::UpdateSessionRequest& request, v1::Session* response) {
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  v1::SessionConfig* config = session->facts.mutable_config();
  if (request.has_time_to_live()) *config->mutable_time_to_live() = request.time_to_live();
  if (request.has_labels()) *config->mutable_labels() = request.labels().labels();
  Describe(*session, response);
  return grpc::Status::OK;
}

void FakeSessions::Delete(const v1::DeleteSessionRequest& request) {
  sessions_.erase(request.session_id());
}

grpc::Status FakeSessions::Flush(const v1::FlushSessionRequest& request,
                                 v1::FlushSessionResponse* response) {
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  if (session->facts.config().durability() <= v1::EPHEMERAL) {
    return FakeError(grpc::StatusCode::INVALID_ARGUMENT, "UNSUPPORTED", "durability: is EPHEMERAL");
  }
  for (Layer& layer : session->layers) {
    v1::LayerPosition* position = response->add_positions();
    position->set_layer(response->positions_size() - 1);
    position->set_position(layer.position);
    layer.durable = layer.position;
    position->set_durable_position(layer.durable);
  }
  return grpc::Status::OK;
}

void FakeSessions::RaiseGenerations() {
  for (auto& [id, session] : sessions_) session.facts.set_generation(next_generation_++);
}

std::int64_t FakeSessions::PositionOf(const std::string& session, int layer) const {
  return sessions_.at(session).layers.at(static_cast<std::size_t>(layer)).position;
}

grpc::Status FakeSessions::Find(const std::string& id, Session** session) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    return FakeError(grpc::StatusCode::NOT_FOUND, "UNKNOWN", "session_id: '" + id + "' is unknown");
  }
  *session = &found->second;
  return grpc::Status::OK;
}

void FakeSessions::Describe(const Session& session, v1::Session* response) {
  *response = session.facts;
  response->set_loaded(true);
  for (const Layer& layer : session.layers) {
    response->add_layer_positions(layer.position);
    if (session.facts.config().durability() > v1::EPHEMERAL) {
      response->add_durable_layer_positions(layer.durable);
    }
  }
}

grpc::Status FakeSessions::CheckMutation(const v1::LayerTokens& tokens, std::uint64_t generation,
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

void FakeSessions::Apply(const v1::LayerTokens& tokens, const std::string& content, Layer* layer) {
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

grpc::Status FakeSessions::Answer(const Layer& layer, const v1::Tensor& queries,
                                  const v1::AnswerOptions& options, const AnswerLimit& limit,
                                  std::int64_t first_visible, bool causal, v1::Answer* answer) {
  const std::int64_t n = queries.shape(0);
  const std::int64_t heads = layer.group.query_heads();
  const std::int64_t group = heads / layer.group.kv_heads();
  const std::int64_t dim = layer.group.value_dim();
  const std::int64_t row_bytes =
      heads * (4 * dim + (options.flags() ? 1 : 0) + (options.estimates() ? 29 : 0) +
               std::int64_t{14} * options.top_k()) +
      limit.extra_bytes_per_row;
  const std::int64_t fits = (limit.max_bytes - 1024) / row_bytes;
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

void FakeSessions::Estimate(std::int64_t queries, std::int64_t heads, const v1::Accuracy& accuracy,
                            std::int64_t first_visible, bool causal, v1::Estimates* estimates) {
  const std::int64_t rows = queries * heads;
  std::vector<float> bounds;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t visible = first_visible + (causal ? row / heads : 0);
    estimates->add_keys_evaluated(visible);
    bounds.push_back(static_cast<float>(visible) - 1);
    bounds.push_back(static_cast<float>(visible) + 1);
    estimates->mutable_paths()->push_back(static_cast<char>(row % 2));
    estimates->mutable_calibrated()->push_back('\1');
    estimates->mutable_target_met()->push_back(static_cast<char>(1 - row % 2));
  }
  estimates->set_coverage(0.95);
  const auto all = static_cast<std::size_t>(rows);
  SetTensor(std::vector<float>(all, static_cast<float>(accuracy.target_error())), {queries, heads},
            estimates->mutable_errors());
  SetTensor(std::vector<float>(all, 0.5F), {queries, heads}, estimates->mutable_exact_masses());
  SetTensor(bounds, {queries, heads, 2}, estimates->mutable_log_normalizer_bounds());
}

grpc::Status FakeSessions::Append(const v1::AppendRequest& request, v1::AppendResponse* response) {
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  bool replayed = false;
  for (const v1::LayerTokens& tokens : request.tokens()) {
    const auto status = CheckMutation(tokens, request.generation(), tokens.SerializeAsString(),
                                      *session, &replayed);
    if (!status.ok()) return status;
  }
  response->set_replayed(replayed);
  ++(replayed ? replayed_messages_ : applied_messages_);
  for (const v1::LayerTokens& tokens : request.tokens()) {
    Layer& layer = session->layers.at(static_cast<std::size_t>(tokens.layer()));
    if (!replayed) Apply(tokens, tokens.SerializeAsString(), &layer);
    if (session->facts.config().durability() == v1::LOGGED) layer.durable = layer.position;
    v1::LayerPosition* position = response->add_positions();
    position->set_layer(tokens.layer());
    position->set_position(tokens.position() + tokens.keys().shape(0));
    position->set_durable_position(layer.durable);
  }
  return grpc::Status::OK;
}

grpc::Status FakeSessions::Attend(const v1::AttendRequest& request, const AnswerLimit& limit,
                                  v1::AttendResponse* response) {
  Session* session = nullptr;
  if (const auto status = Find(request.session_id(), &session); !status.ok()) return status;
  const Layer& layer = session->layers.at(static_cast<std::size_t>(request.layer()));
  if (layer.position < request.min_position()) {
    return FakeError(grpc::StatusCode::FAILED_PRECONDITION, "POSITION_NOT_REACHED",
                     "min_position: is not reached");
  }
  response->set_position(layer.position);
  if (request.options().estimates()) {
    Estimate(request.queries().shape(0), layer.group.query_heads(), request.accuracy(),
             layer.position, false, response->mutable_answer()->mutable_estimates());
  }
  return Answer(layer, request.queries(), request.options(), limit, layer.position, false,
                response->mutable_answer());
}

grpc::Status FakeSessions::Step(const v1::StepRequest& request, const AnswerLimit& limit,
                                v1::StepResponse* response) {
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
    ++replayed_messages_;
    *response = layer.last_step;
    response->set_replayed(true);
    response->set_durable_position(layer.durable);
    return grpc::Status::OK;
  }
  Layer next = layer;
  Apply(request.tokens(), content, &next);
  status = Answer(next, request.queries(), request.options(), limit, layer.position + 1, true,
                  response->mutable_answer());
  if (!status.ok()) return status;
  if (request.options().estimates()) {
    Estimate(request.queries().shape(0), layer.group.query_heads(), request.accuracy(),
             layer.position + 1, true, response->mutable_answer()->mutable_estimates());
  }
  response->set_position(next.position);
  if (session->facts.config().durability() == v1::LOGGED) next.durable = next.position;
  response->set_durable_position(next.durable);
  next.last_step_position = layer.position;
  next.last_step = *response;
  layer = std::move(next);
  ++applied_messages_;
  return grpc::Status::OK;
}

}  // namespace attnd::client
