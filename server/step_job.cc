#include "server/step_job.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "engine/layer_stream.h"

namespace attnd::server {

StepJob::StepJob(Call call, const v1::StepRequest& request, const LayerSlice& slice,
                 const RowsView& queries, const AnswerSpec& spec, std::int64_t reserved,
                 v1::StepResponse& response)
    : MessageJob(std::move(call)),
      request_(request),
      span_(slice.span),
      engine_(call_.session().engine(slice.span.layer)),
      queries_(queries),
      spec_(spec),
      response_(response),
      mutation_(std::make_unique<Mutation>(call_.session(), engine::MessageKind::kStep,
                                           std::vector<LayerSlice>{slice}, call_.services().budget,
                                           reserved)) {}

absl::StatusOr<Job::Next> StepJob::Continue(engine::Scratch& scratch) {
  if (!started_) {
    started_ = true;
    absl::Status begun = Begin();
    if (!begun.ok()) return begun;
  }
  if (!applies_) return ContinueReplay(scratch);
  if (answering_) {
    answering_ = false;
    plan_->Finish(scratch);
  }
  const std::int64_t done = mutation_->done(0);
  const std::int64_t left = span_.count - done;
  if (left == 0) {
    absl::Status published = Publish(scratch);
    if (!published.ok()) return published;
    return Next::kEnd;
  }
  // The tokens of one block share one sealed state, so that their queries are one group.
  const std::int64_t now = std::min(left, mutation_->draft(0).open_rows());
  if (!mutation_->PrepareSeal(0, now, scratch)) return Next::kAdvance;
  absl::Status applied = mutation_->Apply(0, now, scratch);
  if (!applied.ok()) return applied;
  const std::int64_t row = done * engine_.shape().query_row();
  engine::QueryGroup group =
      engine::StepGroup(mutation_->draft(0).state(), rows_->data() + row, now);
  group.accuracy = spec_.accuracy;
  group.layer = span_.layer;
  plan_->Reset(group, answer_->View(done));
  answering_ = true;
  return Next::kChains;
}

absl::Status StepJob::Begin() {
  absl::StatusOr<QueryRows> rows = QueryRows::Make(queries_.elements, engine_.shape().query_row());
  if (!rows.ok()) return rows.status();
  rows_ = *std::move(rows);
  applies_ = mutation_->Applies();
  if (applies_) {
    answer_.emplace(spec_, queries_.rows, *response_.mutable_answer());
    plan_ = engine_.NewPlan();
  }
  EnterStage(Stage::kCompute);
  return absl::OkStatus();
}

// The message does not stand at the layer's position: digests its tokens to see whether it is the
// retry of a Step whose answer is kept.
absl::StatusOr<Job::Next> StepJob::ContinueReplay(engine::Scratch& scratch) {
  const std::int64_t left = span_.count - mutation_->done(0);
  const std::int64_t now = std::min(left, mutation_->QuantumTokens(0));
  absl::Status digested = mutation_->Digest(0, now, scratch);
  if (!digested.ok()) return digested;
  if (now < left) return Next::kAdvance;
  const engine::Message message = mutation_->Message(QueryDigest());
  absl::Status retry = call_.session().ClassifyRetry(message);
  if (!retry.ok()) return retry;
  absl::StatusOr<std::shared_ptr<const v1::StepResponse>> answer =
      call_.session().ReplayStep(message);
  if (!answer.ok()) return answer.status();
  response_ = **answer;
  response_.set_replayed(true);
  response_.set_durable_position(
      call_.session().DurableWhenAnswered(span_.layer, response_.position()));
  return Next::kEnd;
}

absl::Status StepJob::Publish(engine::Scratch& scratch) {
  absl::Status status = mutation_->CheckTail(0, scratch);
  if (!status.ok()) return status;
  EnterStage(Stage::kEncode);
  status = answer_->Finish();
  if (!status.ok()) return status;
  response_.set_position(span_.position + span_.count);
  response_.set_durable_position(
      call_.session().DurableWhenAnswered(span_.layer, response_.position()));
  logged_.queries = QueryDigest();
  engine::Message message = mutation_->Message(logged_.queries);
  logged_.digest = message.digest;
  absl::StatusOr<std::uint64_t> published =
      mutation_->Publish(std::move(message), std::make_shared<const v1::StepResponse>(response_));
  if (!published.ok()) return published.status();
  logged_.sequence = *published;
  Metrics& metrics = call_.services().metrics;
  metrics.AddTokens(call_.engine_kind(), span_.count);
  metrics.AddQueries(call_.engine_kind(), queries_.rows);
  answer_->Count(metrics);
  return absl::OkStatus();
}

std::optional<LogEntry> StepJob::Logged() {
  LogEntry entry = {.sequence = logged_.sequence, .record = {}, .spans = {span_}};
  if (applies_) entry.record = EncodeLogRecord(logged_, request_, response_);
  return entry;
}

void StepJob::Release(Session& session) {
  answer_.reset();
  plan_ = nullptr;
  mutation_ = nullptr;
  session.LeaveLane();
}

// What makes two Steps with the same tokens different: the queries and what was asked for. The
// accuracy in force is part of that, since the outputs follow it.
engine::Digest StepJob::QueryDigest() const {
  engine::Digester digester;
  digester.Update(rows_->data(),
                  queries_.elements.count * static_cast<std::int64_t>(sizeof(float)));
  for (const std::int64_t option :
       {static_cast<std::int64_t>(spec_.output_type), std::int64_t{spec_.flags},
        std::int64_t{spec_.denominators}, std::int64_t{spec_.partials}, spec_.top_k,
        std::int64_t{spec_.estimates}, std::bit_cast<std::int64_t>(spec_.accuracy.target_error),
        spec_.accuracy.max_keys}) {
    digester.Update(option);
  }
  return digester.Result();
}

}  // namespace attnd::server
