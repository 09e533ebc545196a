// What all jobs of messages share: they end between quanta when nobody wants them any more, run out
// of memory without harm, and answer exactly once.
#include "server/message_job.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/append_job.h"
#include "server/attend_job.h"
#include "server/error.h"
#include "server/server_info.h"
#include "server/step_job.h"
#include "tests/server/failing_allocation.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

// Runs a job that nobody else runs, from its beginning to its end, on the calling thread.
void RunToEnd(Job& job, engine::Scratch& scratch) {
  for (Job::Next next = job.Advance(scratch); next != Job::Next::kEnd;
       next = job.Advance(scratch)) {
    const std::int64_t chains = next == Job::Next::kChains ? job.chains() : 0;
    for (std::int64_t chain = 0; chain < chains; ++chain) {
      while (!job.RunChain(chain, scratch)) {
      }
    }
  }
}

using Next = Job::Next;

class MessageJobTest : public SessionFixture {
 protected:
  // A call that notes its answers.
  Call MakeCall(CallKind kind = CallKind::kAppend, std::int64_t layer = 0) {
    origin_.arrival_nanos = clock_.MonotonicNanos();
    origin_.cancellation = cancellation_;
    return {services_,
            origin_,
            kind,
            session_,
            layer,
            *admission_.Admit(100),
            [this](const absl::Status& status, Admission::Ticket /*ticket*/) {
              answers_.push_back(status);
              released_before_ = released_;
            }};
  }

  void ExpectOutOfMemory() {
    ASSERT_EQ(answers_.size(), 1U);
    EXPECT_EQ(answers_[0].code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(answers_[0]), v1::STATE_BYTES);
    EXPECT_EQ(ToRpcStatus(answers_[0]).details_size(), 2) << "ErrorInfo and RetryInfo";
  }

  CallOrigin origin_ = {Transport::kUnary, 0, std::numeric_limits<std::int64_t>::max(), nullptr};
  const std::shared_ptr<Cancellation> cancellation_ = std::make_shared<Cancellation>();
  Metrics metrics_{MakeBuildInfo()};
  Admission admission_{100, std::int64_t{1} << 30};
  Admission waits_{100, std::int64_t{1} << 30};
  CallRegistry calls_;
  const CallServices services_{options_, clock_, metrics_, admission_, waits_, budget_, calls_};
  std::shared_ptr<Session> session_ = MakeSession();
  engine::Scratch scratch_;

  std::vector<absl::Status> answers_;
  bool released_ = false;
  bool released_before_ = false;  // the last answer
};

// Chains that a test scripts.
class ScriptedPlan final : public engine::AttendPlan {
 public:
  ScriptedPlan(std::int64_t chains, std::function<bool(std::int64_t)> run)
      : chains_(chains), run_(std::move(run)) {}
  void Reset(const engine::QueryGroup& /*group*/, const engine::AnswerView& /*answer*/) override {}
  std::int64_t chains() const override { return chains_; }
  bool Run(std::int64_t chain, engine::Scratch& /*scratch*/) override { return run_(chain); }
  void Finish(engine::Scratch& /*scratch*/) override {}

 private:
  const std::int64_t chains_;
  const std::function<bool(std::int64_t)> run_;
};

// A job whose steps a test scripts, one after another.
class ScriptedJob final : public MessageJob {
 public:
  using Step = std::function<absl::StatusOr<Next>()>;
  ScriptedJob(Call call, std::deque<Step> steps, std::unique_ptr<engine::AttendPlan> plan,
              bool* released)
      : MessageJob(std::move(call)), steps_(std::move(steps)), released_(released) {
    plan_ = std::move(plan);
  }

 private:
  absl::StatusOr<Next> Continue(engine::Scratch& /*scratch*/) override {
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    return step();
  }
  void Release(Session& session) override {
    MessageJob::Release(session);
    *released_ = true;
  }

  std::deque<Step> steps_;
  bool* const released_;
};

absl::StatusOr<Next> Must(Next next) { return next; }
// A step that no test reaches.
absl::StatusOr<Next> NotReached() {
  ADD_FAILURE() << "the job went on";
  return Next::kEnd;
}
absl::StatusOr<Next> OutOfMemoryStep() { throw std::bad_alloc(); }

TEST_F(MessageJobTest, AnswersOnceWhenItsLastStepHasEnded) {
  ScriptedJob job(MakeCall(),
                  {[] { return Must(Next::kAdvance); }, [] { return Must(Next::kChains); },
                   [] { return Must(Next::kEnd); }},
                  std::make_unique<ScriptedPlan>(2, [](std::int64_t) { return true; }), &released_);
  EXPECT_EQ(job.Advance(scratch_), Next::kAdvance);
  EXPECT_EQ(job.Advance(scratch_), Next::kChains);
  EXPECT_EQ(job.chains(), 2);
  EXPECT_TRUE(job.RunChain(0, scratch_));
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(admission_.requests(), 1);
  EXPECT_EQ(job.Advance(scratch_), Next::kEnd);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_TRUE(answers_[0].ok());
  EXPECT_TRUE(released_before_) << "before it answers";
  EXPECT_EQ(admission_.requests(), 0);
}

TEST_F(MessageJobTest, ABadAllocInAStepIsAnsweredOnce) {
  ScriptedJob job(MakeCall(), {[] { return Must(Next::kAdvance); }, OutOfMemoryStep, NotReached},
                  nullptr, &released_);
  RunToEnd(job, scratch_);
  ExpectOutOfMemory();
  EXPECT_TRUE(released_before_);
}

TEST_F(MessageJobTest, ABadAllocInAChainEndsTheOthersAndIsAnsweredOnce) {
  int ran = 0;
  ScriptedJob job(MakeCall(), {[] { return Must(Next::kChains); }, NotReached},
                  std::make_unique<ScriptedPlan>(4,
                                                 [&](std::int64_t chain) -> bool {
                                                   ++ran;
                                                   if (chain == 1) throw std::bad_alloc();
                                                   return chain != 3;
                                                 }),
                  &released_);
  ASSERT_EQ(job.Advance(scratch_), Next::kChains);
  EXPECT_FALSE(job.RunChain(3, scratch_));
  EXPECT_TRUE(job.RunChain(1, scratch_)) << "the chain that found no memory has ended";
  EXPECT_TRUE(job.RunChain(3, scratch_)) << "so have those that had begun";
  EXPECT_TRUE(job.RunChain(0, scratch_)) << "and those that had not";
  EXPECT_EQ(ran, 2);
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(job.Advance(scratch_), Next::kEnd);
  ExpectOutOfMemory();
  EXPECT_TRUE(released_before_);
}

TEST_F(MessageJobTest, ABadAllocOnAWorkerEndsTheJobAndNotTheWorker) {
  for (int i = 0; i < 3; ++i) {
    scheduler_.Submit(
        "t", 1,
        std::make_unique<ScriptedJob>(
            MakeCall(), std::deque<ScriptedJob::Step>{[] { return Must(Next::kChains); }},
            std::make_unique<ScriptedPlan>(3, [](std::int64_t) -> bool { throw std::bad_alloc(); }),
            &released_));
  }
  scheduler_.Stop();
  ASSERT_EQ(answers_.size(), 3U);
  for (const absl::Status& status : answers_) EXPECT_EQ(ReasonOf(status), v1::STATE_BYTES);
  EXPECT_EQ(admission_.requests(), 0);
}

TEST_F(MessageJobTest, ACancelledJobEndsBetweenQuanta) {
  int ran = 0;
  ScriptedJob job(
      MakeCall(),
      {[] { return Must(Next::kAdvance); }, [] { return Must(Next::kChains); }, NotReached},
      std::make_unique<ScriptedPlan>(2,
                                     [&](std::int64_t) {
                                       ++ran;
                                       return false;
                                     }),
      &released_);
  ASSERT_EQ(job.Advance(scratch_), Next::kAdvance);
  ASSERT_EQ(job.Advance(scratch_), Next::kChains);
  EXPECT_FALSE(job.RunChain(0, scratch_));
  cancellation_->Cancel();
  EXPECT_TRUE(answers_.empty()) << "the worker answers, nobody else";
  EXPECT_TRUE(job.RunChain(0, scratch_));
  EXPECT_TRUE(job.RunChain(1, scratch_));
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(job.Advance(scratch_), Next::kEnd);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(released_before_);
}

TEST_F(MessageJobTest, AJobWhoseDeadlineHasPassedEndsBetweenQuanta) {
  origin_.deadline_nanos = clock_.MonotonicNanos() + 2'000'000;
  ScriptedJob job(MakeCall(), {[] { return Must(Next::kAdvance); }, NotReached}, nullptr,
                  &released_);
  clock_.Advance(absl::Nanoseconds(1'999'999));
  EXPECT_EQ(job.Advance(scratch_), Next::kAdvance);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(job.Advance(scratch_), Next::kEnd);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].code(), absl::StatusCode::kDeadlineExceeded);
}

// ---- The jobs themselves

class MessageJobs : public MessageJobTest {
 protected:
  static constexpr std::int32_t kKde = 3;
  static constexpr std::int64_t kReserved = 12'345;

  static v1::Tensor Tensor(std::int64_t rows, float element) {
    const std::vector<float> elements(static_cast<std::size_t>(rows * kDim), element);
    v1::Tensor tensor;
    tensor.set_dtype(v1::F32);
    for (const std::int64_t size : {rows, std::int64_t{1}, std::int64_t{kDim}}) {
      tensor.add_shape(size);
    }
    tensor.set_data(elements.data(), elements.size() * sizeof(float));
    return tensor;
  }
  v1::LayerTokens Tokens(std::int32_t layer, std::int64_t count) const {
    v1::LayerTokens tokens;
    tokens.set_layer(layer);
    tokens.set_position(session_->position(layer));
    *tokens.mutable_keys() = Tensor(count, 0.5F);
    *tokens.mutable_values() = Tensor(count, 2);
    return tokens;
  }
  LayerSlice Slice(const v1::LayerTokens& tokens) const {
    return *CheckTokens(*session_, tokens, "tokens");
  }
  // Every kind of output that the layer has.
  AnswerSpec Spec(std::int64_t layer = 0) const {
    v1::AnswerOptions options;
    options.set_output_dtype(v1::F16);
    options.set_flags(true);
    options.set_partials(true);
    options.set_top_k(2);
    options.set_estimates(session_->engine(layer).approximate());
    return *PlanAnswer(options, session_->group(layer));
  }

#ifndef ATTND_SANITIZED  // a sanitizer has its own operator new
  // Runs a job again and again, with another allocation failing each time, until none fails: it
  // must answer once, STATE_BYTES with everything as it was, or OK with everything done.
  // Allocations that a job survives by other means are fine.
  void FailEachAllocation(const std::function<std::unique_ptr<Job>()>& make,
                          const std::function<void(bool published)>& check) {
    int refused = 0;
    for (std::int64_t number = 0;; ++number) {
      session_ = nullptr;
      ASSERT_EQ(budget_.used(), 0) << "after allocation " << number - 1;
      session_ = MakeSession();
      Publish(*session_, 0, 60, 1);
      answers_.clear();
      int woken = 0;
      session_->WhenPosition(0, 61, [&](const absl::Status&) { ++woken; });
      const std::int64_t used = budget_.used();
      ASSERT_TRUE(budget_.Reserve(kReserved).ok());
      std::unique_ptr<Job> job = make();
      engine::Scratch scratch;
      bool failed = false;
      {
        const FailingAllocation failing(number);
        RunToEnd(*job, scratch);
        failed = failing.failed();
      }
      job = nullptr;
      SCOPED_TRACE("allocation " + std::to_string(number));
      ASSERT_EQ(answers_.size(), 1U);
      const bool published = answers_[0].ok();
      EXPECT_TRUE(published || ReasonOf(answers_[0]) == v1::STATE_BYTES) << answers_[0];
      EXPECT_EQ(woken, session_->position(0) > 60 ? 1 : 0);
      if (!published) {
        EXPECT_EQ(budget_.used(), used);
      }
      check(published);
      if (!published) ++refused;
      if (!failed) {
        EXPECT_TRUE(published);
        break;
      }
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(refused, 5) << "allocations that failed";
  }
#endif
};

#ifndef ATTND_SANITIZED
TEST_F(MessageJobs, AnAppendThatRunsOutOfMemoryPublishesNothing) {
  v1::LayerTokens one;
  v1::LayerTokens two;
  v1::AppendResponse response;
  FailEachAllocation(
      [&]() -> std::unique_ptr<Job> {
        one = Tokens(0, 150);
        two = Tokens(2, 70);
        response.Clear();
        auto job = std::make_unique<AppendJob>(MakeCall(), v1::AppendRequest::default_instance(),
                                               std::vector<LayerSlice>{Slice(one), Slice(two)},
                                               kReserved, response);
        return job;
      },
      [&](bool published) {
        EXPECT_EQ(session_->position(0), published ? 210 : 60);
        EXPECT_EQ(session_->position(2), published ? 70 : 0);
        if (published) {
          EXPECT_EQ(response.positions_size(), 2);
        }
      });
}

TEST_F(MessageJobs, AStepThatRunsOutOfMemoryPublishesNothing) {
  v1::LayerTokens tokens;
  const v1::Tensor queries = Tensor(10, 1);
  v1::StepResponse response;
  FailEachAllocation(
      [&]() -> std::unique_ptr<Job> {
        tokens = Tokens(0, 10);
        response.Clear();
        return std::make_unique<StepJob>(
            MakeCall(CallKind::kStep), v1::StepRequest::default_instance(), Slice(tokens),
            *CheckRows(queries, "queries", 1, kDim), Spec(), kReserved, response);
      },
      [&](bool published) {
        EXPECT_EQ(session_->position(0), published ? 70 : 60);
        if (published) {
          EXPECT_EQ(response.answer().outputs().shape(0), 10);
        }
      });
}

TEST_F(MessageJobs, AStepOfEstimatesThatRunsOutOfMemoryPublishesNothing) {
  v1::LayerTokens tokens;
  const v1::Tensor queries = Tensor(10, 1);
  for (const bool sent : {true, false}) {
    v1::StepResponse response;
    FailEachAllocation(
        [&]() -> std::unique_ptr<Job> {
          tokens = Tokens(kKde, 10);
          response.Clear();
          AnswerSpec spec = Spec(kKde);
          spec.estimates = sent;
          return std::make_unique<StepJob>(
              MakeCall(CallKind::kStep, kKde), v1::StepRequest::default_instance(), Slice(tokens),
              *CheckRows(queries, "queries", 1, kDim), spec, kReserved, response);
        },
        [&](bool published) {
          EXPECT_EQ(session_->position(kKde), published ? 10 : 0);
          if (published) {
            EXPECT_EQ(response.answer().estimates().paths().size(), sent ? 10U : 0U);
          }
        });
  }
}

TEST_F(MessageJobs, AnAttendThatRunsOutOfMemorySaysSo) {
  const v1::Tensor queries = Tensor(10, 1);
  v1::AttendResponse response;
  FailEachAllocation(
      [&]() -> std::unique_ptr<Job> {
        budget_.Adjust(-kReserved);  // an Attend takes nothing over
        response.Clear();
        auto job = std::make_unique<AttendJob>(MakeCall(CallKind::kAttend), 0,
                                               *CheckRows(queries, "queries", 1, kDim), nullptr,
                                               Spec(), response);
        job->Observe(session_->layer(0));
        return job;
      },
      [&](bool published) {
        EXPECT_EQ(session_->position(0), 60);
        if (published) {
          EXPECT_EQ(response.answer().outputs().shape(0), 10);
        }
      });
}

#endif

TEST_F(MessageJobs, AnAppendThatIsCancelledBetweenQuantaPublishesNothing) {
  const v1::LayerTokens one = Tokens(0, 10);
  const v1::LayerTokens two = Tokens(2, 10);
  const std::int64_t used = budget_.used();
  ASSERT_TRUE(budget_.Reserve(kReserved).ok());
  v1::AppendResponse response;
  AppendJob job(MakeCall(), v1::AppendRequest::default_instance(), {Slice(one), Slice(two)},
                kReserved, response);
  ASSERT_EQ(job.Advance(scratch_), Next::kAdvance);
  ASSERT_EQ(job.Advance(scratch_), Next::kAdvance);
  EXPECT_TRUE(answers_.empty());
  cancellation_->Cancel();
  EXPECT_EQ(job.Advance(scratch_), Next::kEnd);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(session_->position(0), 0);
  EXPECT_EQ(session_->position(2), 0);
  EXPECT_EQ(budget_.used(), used);
}

// The seal of one token once built a whole index before the job came back to the scheduler.
TEST_F(MessageJobs, ATokenThatNeedsAnIndexYieldsWhileItIsBuilt) {
  for (const bool step : {false, true}) {
    session_ = MakeSession();
    Publish(*session_, kKde, 4032, 1);  // of which a span of 3,968 has been sealed
    const v1::LayerTokens one = Tokens(kKde, 1);
    ASSERT_TRUE(budget_.Reserve(kReserved).ok());
    v1::AppendResponse appended;
    v1::StepResponse stepped;
    std::unique_ptr<Job> job;
    if (step) {
      job = std::make_unique<StepJob>(
          MakeCall(CallKind::kStep, kKde), v1::StepRequest::default_instance(), Slice(one),
          *CheckRows(one.keys(), "queries", 1, kDim), Spec(kKde), kReserved, stepped);
    } else {
      job = std::make_unique<AppendJob>(MakeCall(CallKind::kAppend, kKde),
                                        v1::AppendRequest::default_instance(),
                                        std::vector<LayerSlice>{Slice(one)}, kReserved, appended);
    }
    int pieces = 0;
    Next next = job->Advance(scratch_);
    for (; next == Next::kAdvance; next = job->Advance(scratch_)) ++pieces;
    EXPECT_GT(pieces, 3 * 3968 / 64) << "leaf by leaf, in several stages";
    if (next == Next::kChains) {
      for (std::int64_t chain = 0; chain < job->chains(); ++chain) {
        while (!job->RunChain(chain, scratch_)) {
        }
      }
      RunToEnd(*job, scratch_);
    }
    EXPECT_EQ(session_->position(kKde), 4033);
  }
}

}  // namespace
}  // namespace attnd::server
