// A session of each kind under a random mix of all calls, against a simple model of it (model.h):
// outputs as bits, positions, and what retries, late retries and mistakes are answered. Rows of kde
// sessions that say that they took the exact path are those of an exact session, too.
//
// Runs for ATTND_MIX_SECONDS (default 60, less under a sanitizer), all kinds at once from two
// threads, and prints its seed; ATTND_MIX_SEED repeats it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/feature_map_store.h"
#include "server/feature_map_upload.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/model.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {
namespace {

constexpr Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 8, .value_dim = 6};
constexpr std::int64_t kPool = 1500;

struct Kind {
  std::string name;
  v1::LayerGroup group;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"exact", ExactGroup(kShape)}, {"bf16", ExactGroup(kShape, v1::BF16)}};
  for (const v1::FeatureMapKind map : {v1::ELU_PLUS_ONE, v1::RELU, v1::SQUARED_RELU, v1::IDENTITY,
                                       v1::FAVOR_POSITIVE, v1::FAVOR_HYPERBOLIC, v1::FAVOR_SHARP,
                                       v1::RANDOM_FOURIER, v1::COSFORMER, v1::DPFP, v1::TAYLOR}) {
    kinds.push_back({v1::FeatureMapKind_Name(map), LinearGroup(kShape, map)});
    v1::FeatureMap& feature_map = *kinds.back().group.mutable_linear()->mutable_feature_map();
    if (map == v1::COSFORMER) feature_map.set_horizon(4 * kPool);
    if (map == v1::DPFP) feature_map.set_nu(2);
    if (map == v1::FAVOR_SHARP) feature_map.set_sharpness(-0.1F);
  }
  kinds.push_back({"exact_window", ExactGroup(kShape)});
  kinds.back().group.set_window_tokens(150);
  kinds.push_back({"elu_window", LinearGroup(kShape)});
  kinds.back().group.set_window_tokens(192);
  kinds.push_back({"favor_window", LinearGroup(kShape, v1::FAVOR_POSITIVE)});
  kinds.back().group.set_window_tokens(256);
  kinds.push_back({"kde", KdeGroup(kShape)});
  kinds.push_back({"kde_budget", KdeGroup(kShape)});
  kinds.back().group.mutable_kde()->mutable_accuracy()->set_max_keys(100);
  kinds.push_back({"kde_index", KdeGroup(kShape, v1::KdeConfig::INDEX)});
  kinds.push_back({"kde_certified", KdeGroup(kShape, v1::KdeConfig::CERTIFIED)});
  kinds.back().group.mutable_kde()->mutable_accuracy()->set_max_keys(200);
  kinds.push_back({"mamba2", GatedGroup(kShape, v1::UpdateRule::PER_TOKEN)});
  kinds.push_back({"gla", GatedGroup(kShape, v1::UpdateRule::PER_FEATURE)});
  kinds.push_back({"delta", GatedGroup(kShape, v1::UpdateRule::NONE, true)});
  kinds.push_back({"gated_delta", GatedGroup(kShape, v1::UpdateRule::PER_TOKEN, true)});
  kinds.push_back({"rwkv6", GatedGroup(kShape, v1::UpdateRule::PER_FEATURE)});
  v1::UpdateRule& rwkv6 = *kinds.back().group.mutable_linear()->mutable_update();
  rwkv6.set_read_first(true);
  for (int i = 0; i < 16; ++i) rwkv6.add_bonus(0.1F * static_cast<float>(i));
  kinds.push_back({"retnet", GatedGroup(kShape, v1::UpdateRule::CONSTANT)});
  for (const float log_decay : {-0.032F, -0.016F}) {
    kinds.back().group.mutable_linear()->mutable_update()->add_log_decays(log_decay);
  }
  return kinds;
}

// A map that the server and the models' store have.
TestMap Upload(TestServer& server, server::FeatureMapStore& maps, const server::Options& options) {
  TestMap map = MakeTestMap(v1::FeatureMapHeader::HEDGEHOG, kShape.kv_heads, kShape.query_heads,
                            kShape.key_dim, 5, true, 1);
  const auto context = Context();
  v1::PutFeatureMapResponse response;
  const auto writer = server.stub().PutFeatureMap(context.get(), &response);
  server::FeatureMapUpload upload(maps, options);
  for (const v1::PutFeatureMapRequest& message : {map.Header(), map.Chunk(0, map.payload.size())}) {
    EXPECT_TRUE(writer->Write(message));
    EXPECT_TRUE(upload.Take(message).ok());
  }
  writer->WritesDone();
  EXPECT_TRUE(Succeeded(writer->Finish()));
  EXPECT_TRUE(upload.End().ok());
  return map;
}

// One session, its model, and what its last calls were.
class Mixed {
 public:
  Mixed(TestServer& server, server::FeatureMapStore& maps, Kind kind, std::uint32_t seed)
      : stub_(server.stub()),
        maps_(maps),
        kind_(std::move(kind)),
        random_(seed),
        pool_(RandomTokens(kShape, kPool, seed % 1000)),
        queries_(RandomQueries(kShape, kPool, seed % 1000)) {
    pool_.mask.assign(kPool, 1);
    for (std::int64_t i = draw(0, 5); i < kPool; i += draw(1, 30)) {
      pool_.mask[static_cast<std::size_t>(i)] = 0;
    }
    if (kind_.group.linear().has_update()) AddGates(kind_.group, seed, pool_);
    Begin();
  }

  std::mutex& mutex() { return mutex_; }

  void Act() {
    SCOPED_TRACE(kind_.name);
    if (model_->position() + 100 > kPool) return Recreate();
    switch (draw(0, 11)) {
      case 0:
      case 1:
      case 2:
        return Append();
      case 3:
      case 4:
      case 5:
        return Step();
      case 6:
      case 7:
        return Attend();
      case 8:
        return Retry();
      case 9:
        return Mistake();
      case 10:
        return Look();
      default:
        return draw(0, 20) == 0 ? Recreate() : OnAStream();
    }
  }

 private:
  std::int64_t draw(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  // Mostly a few tokens, at times more than a block.
  std::int64_t Count() { return draw(0, 3) == 0 ? draw(1, 100) : draw(1, 4); }
  const float* query(std::int64_t i) const {
    return queries_.data() + i * kShape.query_heads * kShape.key_dim;
  }

  void Begin() {
    session_.emplace(stub_, kind_.name, ConfigOf({kind_.group}));
    model_.emplace(kind_.group, pool_, maps_);
    if (kind_.group.has_kde()) exact_.emplace(ExactGroup(kShape), pool_, maps_);
    append_.reset();
    step_.reset();
  }

  void Recreate() {
    EXPECT_TRUE(Succeeded(session_->Delete()));
    EXPECT_TRUE(FailedWith(session_->Get().status, grpc::StatusCode::NOT_FOUND, v1::DELETED));
    Begin();
  }

  void Append() {
    const std::int64_t count = Count();
    append_ = session_->AppendOf(pool_, model_->position(), count);
    step_.reset();
    const auto reply = session_->Append(*append_);
    ASSERT_TRUE(Succeeded(reply.status));
    EXPECT_FALSE(reply->replayed());
    Grow(count);
  }

  void Grow(std::int64_t count) {
    model_->Append(count);
    if (exact_) exact_->Append(count);
  }

  // What a message asks for, of sessions that estimate.
  template <class Request>
  void AskForEstimates(Request& request) {
    if (!exact_) return;
    request.mutable_options()->set_estimates(draw(0, 1) == 0);
    if (draw(0, 1) == 0) return;
    request.mutable_accuracy()->set_target_error(0.001 * static_cast<double>(draw(1, 500)));
    request.mutable_accuracy()->set_max_keys(draw(1, kPool));
  }

  template <class Request>
  static engine::Accuracy AccuracyOf(const Request& request) {
    return {request.accuracy().target_error(), request.accuracy().max_keys()};
  }

  // Takes the model's answer to the same message, and the exact one of sessions that estimate.
  void Compare(const v1::Answer& answer, const std::string& model, const std::string& exact,
               const char* what) {
    EXPECT_EQ(answer.outputs().data() == model, true) << what;
    if (!answer.has_estimates()) return;
    const auto floats = [](const std::string& bytes) {
      v1::Tensor tensor;
      tensor.set_dtype(v1::F32);
      tensor.set_data(bytes);
      return Floats(tensor);
    };
    const std::vector<float> estimated = floats(model);
    const std::vector<float> truth = floats(exact);
    const std::string& paths = answer.estimates().paths();
    ASSERT_EQ(paths.size() * kShape.value_dim, truth.size());
    for (std::size_t i = 0; i < truth.size(); ++i) {
      if (paths[i / kShape.value_dim] != v1::ANSWER_PATH_EXACT) continue;
      EXPECT_NEAR(estimated[i], truth[i], 1e-5F) << what << ", a row on the exact path";
    }
  }

  v1::StepRequest StepOf(std::int64_t count) {
    v1::StepRequest request = session_->StepOf(pool_, queries_, model_->position(), count);
    AskForEstimates(request);
    return request;
  }

  struct Outputs {
    std::string model;
    std::string exact;  // of sessions that estimate
  };
  Outputs StepModels(const v1::StepRequest& request) {
    const std::int64_t count = request.queries().shape(0);
    const float* queries = query(model_->position());
    Outputs outputs;
    if (exact_) outputs.exact = exact_->Step(queries, count);
    outputs.model = model_->Step(queries, count, AccuracyOf(request));
    return outputs;
  }
  Outputs AttendModels(const v1::AttendRequest& request, std::int64_t first) const {
    const std::int64_t count = request.queries().shape(0);
    Outputs outputs;
    if (exact_) outputs.exact = exact_->Attend(query(first), count, first);
    outputs.model = model_->Attend(query(first), count, first, AccuracyOf(request));
    return outputs;
  }

  void Step() {
    step_ = StepOf(Count());
    append_.reset();
    const auto reply = session_->Step(*step_);
    ASSERT_TRUE(Succeeded(reply.status));
    const Outputs outputs = StepModels(*step_);
    step_outputs_ = outputs.model;
    Compare(reply->answer(), outputs.model, outputs.exact, "Step");
    EXPECT_EQ(reply->position(), model_->position());
  }

  v1::AttendRequest AttendOf(std::int64_t first, std::int64_t count) {
    v1::AttendRequest request = session_->AttendOf(kShape, queries_, first, count);
    for (std::int64_t i = 0; i < count; ++i) request.add_query_positions(first + i);
    AskForEstimates(request);
    return request;
  }

  void Attend() {
    const std::int64_t count = draw(1, 9);
    const std::int64_t first = draw(0, model_->position());
    const v1::AttendRequest request = AttendOf(first, count);
    const auto reply = session_->Attend(request);
    ASSERT_TRUE(Succeeded(reply.status));
    const Outputs outputs = AttendModels(request, first);
    Compare(reply->answer(), outputs.model, outputs.exact, "Attend");
    EXPECT_EQ(reply->position(), model_->position());
  }

  void Retry() {
    if (append_) {
      const auto reply = session_->Append(*append_);
      ASSERT_TRUE(Succeeded(reply.status));
      EXPECT_TRUE(reply->replayed());
    } else if (step_) {
      const auto reply = session_->Step(*step_);
      ASSERT_TRUE(Succeeded(reply.status));
      EXPECT_TRUE(reply->replayed());
      EXPECT_EQ(reply->answer().outputs().data() == step_outputs_, true) << "replayed Step";
      const v1::StepRequest late = *step_;
      Append();
      EXPECT_TRUE(FailedWith(session_->Step(late).status, grpc::StatusCode::FAILED_PRECONDITION,
                             v1::STEP_REPLAY_EXPIRED));
    }
  }

  void Mistake() {
    v1::AppendRequest append = session_->AppendOf(pool_, model_->position(), 2);
    switch (draw(0, 3)) {
      case 0:
        append.mutable_tokens(0)->set_position(model_->position() + draw(1, 100));
        EXPECT_TRUE(FailedWith(session_->Append(append).status, grpc::StatusCode::OUT_OF_RANGE,
                               v1::WRONG_POSITION));
        break;
      case 1:
        append.set_generation(append.generation() + 1);
        EXPECT_TRUE(FailedWith(session_->Append(append).status, grpc::StatusCode::ABORTED,
                               v1::STALE_GENERATION));
        break;
      case 2: {
        std::string& keys = *append.mutable_tokens(0)->mutable_keys()->mutable_data();
        keys[keys.size() - 1] = '\x7F';
        keys[keys.size() - 2] = '\x80';
        EXPECT_TRUE(FailedWith(session_->Append(append).status, grpc::StatusCode::INVALID_ARGUMENT,
                               v1::NOT_FINITE));
        break;
      }
      default:
        append.mutable_tokens(0)->mutable_values()->mutable_data()->pop_back();
        EXPECT_TRUE(FailedWith(session_->Append(append).status, grpc::StatusCode::INVALID_ARGUMENT,
                               v1::BAD_TENSOR));
    }
  }

  void Look() {
    const auto session = session_->Get();
    ASSERT_TRUE(Succeeded(session.status));
    EXPECT_EQ(session->position(), model_->position());
    v1::UpdateSessionRequest update;
    update.set_session_id(kind_.name);
    (*update.mutable_labels()->mutable_labels())["round"] = std::to_string(draw(0, 9));
    v1::Session updated;
    EXPECT_TRUE(Succeeded(stub_.UpdateSession(Context().get(), update, &updated)));
    EXPECT_EQ(updated.config().labels_size(), 1);
  }

  // Some of each on one stream, pipelined.
  void OnAStream() {
    const auto context = Context();
    const auto stream = stub_.Stream(context.get());
    std::vector<Outputs> expected;
    append_.reset();
    step_.reset();
    const std::int64_t messages = draw(1, 6);
    for (std::int64_t i = 0; i < messages && model_->position() + 10 < kPool; ++i) {
      v1::StreamRequest request;
      const std::int64_t count = draw(1, 4);
      const std::int64_t position = model_->position();
      switch (draw(0, 2)) {
        case 0:
          *request.mutable_append() = session_->AppendOf(pool_, position, count);
          Grow(count);
          expected.emplace_back();
          break;
        case 1:
          *request.mutable_step() = StepOf(count);
          expected.push_back(StepModels(request.step()));
          break;
        default:
          *request.mutable_attend() = AttendOf(position, count);
          expected.push_back(AttendModels(request.attend(), position));
      }
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
    v1::StreamResponse response;
    for (const Outputs& outputs : expected) {
      ASSERT_TRUE(stream->Read(&response));
      EXPECT_EQ(response.status().code(), 0) << response.status().message();
      const v1::Answer& answer =
          response.has_step() ? response.step().answer() : response.attend().answer();
      Compare(answer, outputs.model, outputs.exact, "on a stream");
    }
    EXPECT_TRUE(Succeeded(stream->Finish()));
  }

  v1::AttentionService::Stub& stub_;
  server::FeatureMapStore& maps_;
  const Kind kind_;
  std::mutex mutex_;
  std::mt19937 random_;
  Tokens pool_;
  const std::vector<float> queries_;
  std::optional<TestSession> session_;
  std::optional<Model> model_;
  std::optional<Model> exact_;  // the same tokens, of sessions that estimate
  // The last mutation, if it was one of these.
  std::optional<v1::AppendRequest> append_;
  std::optional<v1::StepRequest> step_;
  std::string step_outputs_;
};

std::int64_t FromEnvironment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

TEST(Mix, SessionsOfEveryKindAreTheirModels) {
  const std::int64_t seconds = FromEnvironment("ATTND_MIX_SECONDS", Rounds(60));
  const auto seed = static_cast<std::uint32_t>(
      FromEnvironment("ATTND_MIX_SEED", std::random_device()() % 1'000'000));
  std::printf("ATTND_MIX_SEED=%u, %lld seconds\n", seed, static_cast<long long>(seconds));
  TestServer server;
  const server::Options options = TestOptions();
  server::FeatureMapStore maps(options, server::SystemClock());
  const TestMap learned = Upload(server, maps, options);
  std::vector<Kind> kinds = Kinds();
  kinds.push_back({"learned", LinearGroup(kShape, v1::LEARNED)});
  kinds.back().group.mutable_linear()->mutable_feature_map()->set_weights(learned.header.sha256());
  std::vector<std::unique_ptr<Mixed>> sessions;
  for (Kind& kind : kinds) {
    sessions.push_back(std::make_unique<Mixed>(server, maps, std::move(kind),
                                               seed + static_cast<std::uint32_t>(sessions.size())));
  }
  std::atomic<std::int64_t> acts = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + 100 + t);
      while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure()) {
        Mixed& session = *sessions[random() % sessions.size()];
        const std::unique_lock lock(session.mutex(), std::try_to_lock);
        if (!lock.owns_lock()) continue;
        session.Act();
        ++acts;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%lld acts on %lld kinds of sessions\n", static_cast<long long>(acts.load()),
              static_cast<long long>(std::ssize(sessions)));
  EXPECT_GT(acts.load(), std::ssize(sessions));
}

}  // namespace
}  // namespace attnd::e2e
