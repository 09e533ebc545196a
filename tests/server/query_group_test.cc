// What Attends and Steps ask of an engine: the accuracy in force, the positions, and how many of
// the queries at once.
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/attend_job.h"
#include "server/server_info.h"
#include "server/step_job.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

// Passes everything on to another engine and notes what its plans are asked.
class NotingEngine final : public engine::Engine {
 public:
  explicit NotingEngine(std::shared_ptr<const engine::Engine> inner) : inner_(std::move(inner)) {}

  const std::vector<engine::QueryGroup>& asked() const { return *asked_; }

  const char* name() const override { return inner_->name(); }
  const engine::LayerShape& shape() const override { return inner_->shape(); }
  engine::PositionUse position_use() const override { return inner_->position_use(); }
  bool approximate() const override { return inner_->approximate(); }
  engine::TailLayout tail_layout() const override { return inner_->tail_layout(); }
  void EncodeTail(const engine::SealedState& sealed, const TailRows& rows, engine::Tail& tail,
                  engine::Scratch& scratch) const override {
    inner_->EncodeTail(sealed, rows, tail, scratch);
  }
  void RoundToStorage(float* values, std::int64_t count) const override {
    inner_->RoundToStorage(values, count);
  }
  bool rounds_storage() const override { return inner_->rounds_storage(); }
  std::shared_ptr<engine::SealedState> NewState() const override { return inner_->NewState(); }
  std::shared_ptr<engine::SealedState> Clone(const engine::SealedState& state) const override {
    return inner_->Clone(state);
  }
  absl::Status Seal(engine::SealedState& state, std::int64_t sealed_tokens,
                    std::span<const engine::Block> blocks,
                    engine::Scratch& scratch) const override {
    return inner_->Seal(state, sealed_tokens, blocks, scratch);
  }
  absl::Status CheckTail(const engine::SealedState& state, const engine::TailView& tail,
                         engine::Scratch& scratch) const override {
    return inner_->CheckTail(state, tail, scratch);
  }
  std::unique_ptr<engine::AttendPlan> NewPlan() const override {
    return std::make_unique<Plan>(inner_->NewPlan(), *asked_);
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return inner_->PlanBytes(tokens, queries, top_k);
  }
  std::int64_t fixed_bytes() const override { return inner_->fixed_bytes(); }
  std::int64_t bytes_per_token() const override { return inner_->bytes_per_token(); }
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    return inner_->AppendBytes(position, count);
  }

 private:
  class Plan final : public engine::AttendPlan {
   public:
    Plan(std::unique_ptr<engine::AttendPlan> inner, std::vector<engine::QueryGroup>& asked)
        : inner_(std::move(inner)), asked_(asked) {}
    void Reset(const engine::QueryGroup& group, const engine::AnswerView& answer) override {
      asked_.push_back(group);
      inner_->Reset(group, answer);
    }
    std::int64_t chains() const override { return inner_->chains(); }
    bool Run(std::int64_t chain, engine::Scratch& scratch) override {
      return inner_->Run(chain, scratch);
    }
    void Finish(engine::Scratch& scratch) override { inner_->Finish(scratch); }

   private:
    const std::unique_ptr<engine::AttendPlan> inner_;
    std::vector<engine::QueryGroup>& asked_;
  };

  const std::shared_ptr<const engine::Engine> inner_;
  const std::unique_ptr<std::vector<engine::QueryGroup>> asked_ =
      std::make_unique<std::vector<engine::QueryGroup>>();
};

class AskedOfTheEngine : public SessionFixture {
 protected:
  static constexpr std::int32_t kKde = 3;
  static constexpr std::int64_t kMany = 30'000;

  void Begin(bool whole_batch) {
    SessionPlan plan = Plan();
    LayerGroup& group = plan.groups[2];
    engine_ = std::make_shared<NotingEngine>(group.engine);
    group.engine = engine_;
    group.whole_batch = whole_batch;
    group.accuracy = {0.25, 1000};
    ASSERT_TRUE(budget_.Reserve(Session::initial_bytes(plan)).ok());
    session_ =
        std::make_shared<Session>(SessionKey{Session::kDefaultTenant, "s"}, std::move(plan),
                                  SessionBirth{7, 7, absl::Now()}, 1, clock_, scheduler_, budget_);
  }

  Call MakeCall(CallKind kind) {
    const CallOrigin origin = {Transport::kUnary, 0, std::numeric_limits<std::int64_t>::max(),
                               std::make_shared<Cancellation>()};
    return {services_,
            origin,
            kind,
            session_,
            kKde,
            *admission_.Admit(100),
            [](const absl::Status& status, Admission::Ticket /*ticket*/) {
              EXPECT_TRUE(status.ok()) << status;
            }};
  }

  static void RunToEnd(Job& job) {
    engine::Scratch scratch;
    for (Job::Next next = job.Advance(scratch); next != Job::Next::kEnd;
         next = job.Advance(scratch)) {
      const std::int64_t chains = next == Job::Next::kChains ? job.chains() : 0;
      for (std::int64_t chain = 0; chain < chains; ++chain) {
        while (!job.RunChain(chain, scratch)) {
        }
      }
    }
  }

  static v1::Tensor Ones(std::int64_t rows) {
    const std::vector<float> ones(static_cast<std::size_t>(rows * kDim), 1.0F);
    v1::Tensor tensor;
    tensor.set_dtype(v1::F32);
    for (const std::int64_t size : {rows, std::int64_t{1}, std::int64_t{kDim}}) {
      tensor.add_shape(size);
    }
    tensor.set_data(ones.data(), ones.size() * sizeof(float));
    return tensor;
  }

  void Attend(std::int64_t queries, const std::int64_t* positions, const v1::Accuracy* accuracy) {
    const v1::Tensor rows = Ones(queries);
    v1::AttendResponse response;
    AttendJob job(MakeCall(CallKind::kAttend), kKde, *CheckRows(rows, "queries", 1, kDim),
                  positions, *PlanAnswer({}, session_->group(kKde), accuracy), response);
    job.Observe(session_->layer(kKde));
    RunToEnd(job);
  }

  Metrics metrics_{MakeBuildInfo()};
  Admission admission_{100, std::int64_t{1} << 30};
  Admission waits_{100, std::int64_t{1} << 30};
  CallRegistry calls_;
  const CallServices services_{options_, clock_, metrics_, admission_, waits_, budget_, calls_};
  std::shared_ptr<NotingEngine> engine_;
  std::shared_ptr<Session> session_;
};

TEST_F(AskedOfTheEngine, AnAttendHandsOnAccuracyAndPositionsWithEachGroup) {
  Begin(false);
  v1::Accuracy accuracy;
  accuracy.set_target_error(0.5);
  const std::vector<std::int64_t> positions(kMany, 7);
  Attend(kMany, positions.data(), &accuracy);
  ASSERT_GT(engine_->asked().size(), 1U) << "groups bound the memory of a plan";
  std::int64_t count = 0;
  for (const engine::QueryGroup& group : engine_->asked()) {
    EXPECT_EQ(group.accuracy.target_error, 0.5);
    EXPECT_EQ(group.accuracy.max_keys, 1000) << "the session's";
    EXPECT_EQ(group.layer, kKde) << "what is drawn is drawn for the layer";
    EXPECT_EQ(group.positions, positions.data() + count);
    count += group.count;
  }
  EXPECT_EQ(count, kMany);
}

TEST_F(AskedOfTheEngine, ABatchThatAnswersDependOnIsOneGroup) {
  Begin(true);
  Attend(kMany, nullptr, nullptr);
  ASSERT_EQ(engine_->asked().size(), 1U);
  EXPECT_EQ(engine_->asked()[0].count, kMany);
  EXPECT_EQ(engine_->asked()[0].positions, nullptr);
}

TEST_F(AskedOfTheEngine, AStepHandsOnItsAccuracy) {
  Begin(false);
  v1::Accuracy accuracy;
  accuracy.set_max_keys(5);
  v1::LayerTokens tokens;
  tokens.set_layer(kKde);
  tokens.set_position(0);
  *tokens.mutable_keys() = Ones(100);
  *tokens.mutable_values() = Ones(100);
  const v1::Tensor queries = Ones(100);
  v1::StepResponse response;
  ASSERT_TRUE(budget_.Reserve(1000).ok());
  StepJob job(MakeCall(CallKind::kStep), v1::StepRequest::default_instance(),
              *CheckTokens(*session_, tokens, "tokens"), *CheckRows(queries, "queries", 1, kDim),
              *PlanAnswer({}, session_->group(kKde), &accuracy), 1000, response);
  RunToEnd(job);
  ASSERT_EQ(engine_->asked().size(), 2U) << "blocks";
  for (const engine::QueryGroup& group : engine_->asked()) {
    EXPECT_EQ(group.accuracy.target_error, 0.25);
    EXPECT_EQ(group.accuracy.max_keys, 5);
  }
  EXPECT_EQ(session_->position(kKde), 100);
}

}  // namespace
}  // namespace attnd::server
