#include "server/attend_job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/layer_stream.h"

namespace attnd::server {
namespace {

// Query rows of all heads that share one plan, whose memory grows with them: enough for 64 tiles of
// 192 rows, which keep every worker busy.
constexpr std::int64_t kGroupRows = std::int64_t{64} * 192;

}  // namespace

AttendJob::AttendJob(Call call, std::int64_t layer, const RowsView& queries,
                     const std::int64_t* positions, const AnswerSpec& spec,
                     v1::AttendResponse& response)
    : MessageJob(std::move(call)),
      layer_(layer),
      engine_(call_.session().engine(layer)),
      group_queries_(GroupQueries(call_.session().group(layer))),
      queries_(queries),
      positions_(positions),
      spec_(spec),
      response_(response) {}

absl::StatusOr<Job::Next> AttendJob::Continue(engine::Scratch& scratch) {
  if (plan_ == nullptr) {
    absl::Status begun = Begin();
    if (!begun.ok()) return begun;
  } else {
    plan_->Finish(scratch);
  }
  if (attended_ < queries_.rows) return AttendGroup();
  absl::Status ended = End();
  if (!ended.ok()) return ended;
  return Next::kEnd;
}

void AttendJob::Release(Session& session) {
  MessageJob::Release(session);
  state_ = nullptr;
  session.StateReleased();
}

absl::Status AttendJob::Begin() {
  absl::StatusOr<QueryRows> rows = QueryRows::Make(queries_.elements, engine_.shape().query_row());
  if (!rows.ok()) return rows.status();
  rows_ = *std::move(rows);
  answer_.emplace(spec_, queries_.rows, *response_.mutable_answer());
  plan_ = engine_.NewPlan();
  EnterStage(Stage::kCompute);
  return absl::OkStatus();
}

std::int64_t AttendJob::GroupQueries(const LayerGroup& group) {
  if (group.whole_batch) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(kGroupRows / group.engine->shape().query_heads, 1);
}

Job::Next AttendJob::AttendGroup() {
  const engine::LayerShape& shape = engine_.shape();
  const std::int64_t count = std::min(queries_.rows - attended_, group_queries_);
  const float* rows = rows_->data() + attended_ * shape.query_row();
  const std::int64_t* positions = positions_ == nullptr ? nullptr : positions_ + attended_;
  engine::QueryGroup group = engine::AttendGroup(*state_, rows, count, positions);
  group.accuracy = spec_.accuracy;
  group.layer = layer_;
  plan_->Reset(group, answer_->View(attended_));
  attended_ += count;
  return Next::kChains;
}

absl::Status AttendJob::End() {
  EnterStage(Stage::kEncode);
  call_.services().metrics.AddQueries(call_.engine_kind(), queries_.rows);
  response_.set_position(state_->position());
  absl::Status finished = answer_->Finish();
  if (finished.ok()) answer_->Count(call_.services().metrics);
  return finished;
}

}  // namespace attnd::server
