// A row of StreamRequest messages, each behind its length in two bytes, at a session with layers of
// all engines, kde's in all four modes.
//
// Half of the messages are sent to the session and its generation whatever they say, or nothing
// would get past these two checks. Half of the Attends among them go to a session of kde layers
// that hold more tokens than one input brings: enough for an index and for a sample. What must
// hold: each is answered once, a mutation that failed changed nothing, one that succeeded moved the
// layer by its tokens or was a retry, numbers of an answer are in their range, and at the end no
// request, byte or state is left.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/error.h"
#include "server/session_config.h"
#include "tests/fuzz/fuzz_server.h"

namespace attnd::server {
namespace {

void AddKdeLayers(v1::SessionConfig& config) {
  for (const auto mode : {v1::KdeConfig::AUTO, v1::KdeConfig::INDEX, v1::KdeConfig::CERTIFIED,
                          v1::KdeConfig::PAPER}) {
    v1::LayerGroup& kde = *config.add_layer_groups();
    kde.set_key_dim(2);
    kde.set_query_heads(2);
    kde.mutable_kde()->set_mode(mode);
  }
}

SessionPlan Plan(const Options& options) {
  v1::SessionConfig config;
  v1::LayerGroup& exact = *config.add_layer_groups();
  exact.set_key_dim(2);
  exact.mutable_exact();
  v1::LayerGroup& linear = *config.add_layer_groups();
  linear.set_key_dim(2);
  linear.set_value_dim(1);
  linear.set_query_heads(2);
  linear.mutable_linear()->mutable_feature_map()->set_kind(v1::SQUARED_RELU);
  v1::LayerGroup& scaled = *config.add_layer_groups();
  scaled.set_key_dim(2);
  scaled.mutable_linear()->mutable_feature_map()->set_kind(v1::FAVOR_POSITIVE);
  scaled.mutable_linear()->mutable_feature_map()->set_features(3);
  v1::LayerGroup& positional = *config.add_layer_groups();
  positional.set_key_dim(1);
  positional.mutable_linear()->mutable_feature_map()->set_kind(v1::COSFORMER);
  positional.mutable_linear()->mutable_feature_map()->set_horizon(100);
  v1::LayerGroup& columns = *config.add_layer_groups();
  columns.set_key_dim(2);
  columns.mutable_linear()->mutable_feature_map()->set_kind(v1::EFFICIENT);
  v1::LayerGroup& window = *config.add_layer_groups();
  window.set_key_dim(1);
  window.set_window_tokens(3);
  window.mutable_exact();
  v1::LayerGroup& blocks = *config.add_layer_groups();
  blocks.set_key_dim(1);
  blocks.set_window_tokens(64);
  blocks.mutable_linear()->mutable_feature_map()->set_kind(v1::RELU);
  for (const auto decay : {v1::UpdateRule::PER_TOKEN, v1::UpdateRule::PER_FEATURE}) {
    v1::LayerGroup& gated = *config.add_layer_groups();
    gated.set_key_dim(2);
    v1::LinearConfig& rule = *gated.mutable_linear();
    rule.mutable_feature_map()->set_kind(v1::IDENTITY);
    rule.set_normalization(v1::UNNORMALIZED);
    rule.mutable_update()->set_decay(decay);
    rule.mutable_update()->set_delta(decay == v1::UpdateRule::PER_TOKEN);
  }
  AddKdeLayers(config);
  return *PlanSession(config, options);
}

absl::Status Handle(FuzzServer& server, v1::StreamRequest& request, v1::StreamResponse& response) {
  auto answer = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answered = answer->get_future();
  // A second answer would throw.
  const Answered on_answer = [answer](const absl::Status& status, Admission::Ticket) {
    answer->set_value(status);
  };
  const CallOrigin origin = {Transport::kStream, SystemClock().MonotonicNanos(),
                             std::numeric_limits<std::int64_t>::max(),
                             std::make_shared<Cancellation>()};
  switch (request.message_case()) {
    case v1::StreamRequest::kAppend:
      server.messages.Append(origin, request.append(), *response.mutable_append(), on_answer);
      break;
    case v1::StreamRequest::kAttend:
      server.messages.Attend(origin, request.attend(), *response.mutable_attend(), on_answer);
      // Nobody will append while this one waits.
      if (request.attend().wait() && request.attend().min_position() > 0) {
        origin.cancellation->Cancel();
      }
      break;
    case v1::StreamRequest::kStep:
      server.messages.Step(origin, request.step(), *response.mutable_step(), on_answer);
      break;
    case v1::StreamRequest::MESSAGE_NOT_SET:
      return absl::OkStatus();
  }
  return answered.get();
}

// Rows on a grid that never repeats within kLongTokens, so that keys are near and far.
void SetRows(std::int64_t rows, std::int64_t stride, v1::Tensor& tensor) {
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t place = i * stride % rows;
    const std::int64_t line = place / 64;
    numbers.push_back(static_cast<float>(place % 64 - 32) / 8);
    numbers.push_back(static_cast<float>(line - 32) / 8);
  }
  tensor.set_dtype(v1::F32);
  for (const std::int64_t size : {rows, std::int64_t{1}, std::int64_t{2}}) tensor.add_shape(size);
  tensor.set_data(numbers.data(), numbers.size() * sizeof(float));
}

// kde layers of four modes with an index over all but the newest tokens.
class LongSession {
 public:
  explicit LongSession(FuzzServer& server) {
    v1::SessionConfig config;
    AddKdeLayers(config);
    auto created = server.sessions.Create({Session::kDefaultTenant, "long"},
                                          *PlanSession(config, server.options));
    Require(created.ok(), "a long session is made");
    session_ = *std::move(created);
    v1::StreamRequest request;
    v1::AppendRequest& append = *request.mutable_append();
    append.set_session_id(session_->key().id);
    append.set_generation(session_->generation());
    for (int layer = 0; layer < session_->layers(); ++layer) {
      v1::LayerTokens& tokens = *append.add_tokens();
      tokens.set_layer(layer);
      tokens.set_position(0);
      SetRows(kLongTokens, 1, *tokens.mutable_keys());
      SetRows(kLongTokens, 7, *tokens.mutable_values());
    }
    v1::StreamResponse response;
    Require(Handle(server, request, response).ok(), "a long session is filled");
    while (server.scheduler.jobs() > 0) std::this_thread::yield();
  }

  const Session& session() const { return *session_; }

 private:
  static constexpr std::int64_t kLongTokens = 4500;

  SessionPtr session_;
};

void Aim(v1::StreamRequest& request, const Session& session) {
  if (request.has_append()) {
    request.mutable_append()->set_session_id(session.key().id);
    request.mutable_append()->set_generation(session.generation());
  } else if (request.has_attend()) {
    request.mutable_attend()->set_session_id(session.key().id);
  } else if (request.has_step()) {
    request.mutable_step()->set_session_id(session.key().id);
    request.mutable_step()->set_generation(session.generation());
  }
}

std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> numbers(tensor.data().size() / sizeof(float));
  std::memcpy(numbers.data(), tensor.data().data(), numbers.size() * sizeof(float));
  return numbers;
}

void CheckNumbers(const v1::Answer& answer) {
  if (answer.outputs().dtype() == v1::F32) {
    Require(std::ranges::all_of(Floats(answer.outputs()), [](float x) { return std::isfinite(x); }),
            "outputs are finite");
  }
  if (!answer.has_estimates()) return;
  const v1::Estimates& estimates = answer.estimates();
  const std::vector<float> errors = Floats(estimates.errors());
  const std::vector<float> masses = Floats(estimates.exact_masses());
  const std::vector<float> bounds = Floats(estimates.log_normalizer_bounds());
  const std::size_t rows = errors.size();
  const auto keys = static_cast<std::size_t>(estimates.keys_evaluated_size());
  Require(masses.size() == rows && bounds.size() == 2 * rows && keys == rows &&
              estimates.paths().size() == rows && estimates.calibrated().size() == rows &&
              estimates.target_met().size() == rows,
          "every row has its estimates");
  for (std::size_t row = 0; row < rows; ++row) {
    Require(errors[row] >= 0.0F, "a stated error is a number, at least 0");
    Require(masses[row] >= 0.0F && masses[row] <= 1.0F, "a share is 0 to 1");
    Require(!(bounds[2 * row] > bounds[2 * row + 1]), "bounds are in order");
    Require(estimates.keys_evaluated(static_cast<int>(row)) >= 0, "a count is at least 0");
  }
}

void CheckAnswer(const absl::Status& status, const v1::StreamRequest& request,
                 const v1::StreamResponse& response, std::int64_t before, std::int64_t after) {
  if (!status.ok()) {
    Require(before == after, "a message that failed changes nothing");
    const bool given_up = status.code() == absl::StatusCode::kCancelled;
    Require(given_up || ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED, "a failure has a reason");
    Require(ReasonOf(status) != v1::INTERNAL_ERROR, "no invariant of the server is broken");
    Require(status.message().size() < 1000 &&
                std::string(status.message()).find('\n') == std::string::npos,
            "a message is one short line");
    return;
  }
  if (request.has_attend()) {
    Require(before == after, "an Attend changes nothing");
    CheckNumbers(response.attend().answer());
  } else if (request.has_step()) {
    Require((after == before) == response.step().replayed(), "a Step applies or is a retry");
    Require(response.step().position() <= after, "a Step tells where its tokens end");
    CheckNumbers(response.step().answer());
  } else if (request.has_append()) {
    Require((after == before) == response.append().replayed(), "an Append applies or is a retry");
  }
}

std::int64_t Tokens(const Session& session) {
  std::int64_t tokens = 0;
  for (std::int64_t layer = 0; layer < session.layers(); ++layer) tokens += session.position(layer);
  return tokens;
}

void Run(FuzzServer& server, const LongSession& long_session, const std::uint8_t* data,
         std::size_t size) {
  const std::int64_t kept = server.budget.used();
  auto created = server.sessions.Create({Session::kDefaultTenant, "s"}, Plan(server.options));
  Require(created.ok(), "a small session is made");
  SessionPtr session = *std::move(created);
  for (int messages = 0; messages < 16 && size >= 2; ++messages) {
    const std::size_t length =
        std::min(std::size_t{data[0]} + (std::size_t{data[1]} & 0x3F) * 256, size - 2);
    const bool aim = (data[1] & 0x80) == 0;
    const bool at_long = (data[1] & 0x40) != 0;
    v1::StreamRequest request;
    v1::StreamResponse response;
    const bool parsed = request.ParseFromArray(data + 2, static_cast<int>(length));
    data += 2 + length;
    size -= 2 + length;
    if (!parsed || request.message_case() == v1::StreamRequest::MESSAGE_NOT_SET) continue;
    if (aim) Aim(request, at_long && request.has_attend() ? long_session.session() : *session);
    const std::int64_t before = Tokens(*session);
    const absl::Status status = Handle(server, request, response);
    CheckAnswer(status, request, response, before, Tokens(*session));
  }
  Require(server.sessions.Delete(session->key()).ok(), "a session can be deleted");
  // Answers come a moment before their jobs end.
  while (server.scheduler.jobs() > 0) std::this_thread::yield();
  session = nullptr;
  Require(server.admission.requests() == 0 && server.admission.bytes() == 0, "tickets come back");
  Require(server.budget.used() == kept, "state is given back");
}

}  // namespace
}  // namespace attnd::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& server = *new attnd::server::FuzzServer;
  static const auto& long_session = *new attnd::server::LongSession(server);
  attnd::server::Run(server, long_session, data, size);
  return 0;
}
