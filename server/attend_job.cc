#include "server/attend_job.h"

#include <algorithm>
#include <utility>

#include "engine/layer_stream.h"

namespace attnd::server {
namespace {

// Multiply-adds that a worker does in about five microseconds.
constexpr std::int64_t kBriefOperations = 1 << 16;

}  // namespace

AttendJob::AttendJob(Call call, std::int64_t layer, const RowsView& queries, const AnswerSpec& spec,
                     v1::AttendResponse& response)
    : call_(std::move(call)),
      engine_(call_.session().engine(layer)),
      queries_(queries),
      spec_(spec),
      response_(response) {}

bool AttendJob::brief() const {
  const engine::LayerShape& shape = engine_.shape();
  // An engine that keeps no tokens reads its features and the open block instead.
  const std::int64_t rows = engine_.bytes_per_token() > 0
                                ? state_->position()
                                : engine_.feature_dim() + engine::kBlockTokens;
  const std::int64_t row_operations = shape.query_heads * (shape.key_dim + shape.value_dim);
  return queries_.rows <= kBriefOperations / std::max<std::int64_t>(rows * row_operations, 1);
}

Job::Next AttendJob::Advance(engine::Scratch& scratch) {
  const bool begins = plan_ == nullptr;
  absl::Status status = begins ? Begin() : End(scratch);
  if (begins && status.ok()) return Next::kChains;
  plan_ = nullptr;
  answer_.reset();
  call_.EndStage(Stage::kEncode);
  call_.Answer(status);
  return Next::kEnd;
}

absl::Status AttendJob::Begin() {
  call_.EndStage(Stage::kQueue);
  absl::Status wanted = call_.StillWanted();
  if (!wanted.ok()) return wanted;
  absl::StatusOr<QueryRows> rows = QueryRows::Make(queries_.elements, engine_.shape().query_row());
  if (!rows.ok()) return rows.status();
  rows_ = *std::move(rows);
  answer_.emplace(spec_, queries_.rows, *response_.mutable_answer());
  plan_ = engine_.NewPlan();
  plan_->Reset(engine::AttendGroup(*state_, rows_->data(), queries_.rows), answer_->View(0));
  call_.EndStage(Stage::kDecode);
  return absl::OkStatus();
}

absl::Status AttendJob::End(engine::Scratch& scratch) {
  absl::Status wanted = call_.StillWanted();
  if (!wanted.ok()) return wanted;
  plan_->Finish(scratch);
  call_.EndStage(Stage::kCompute);
  call_.services().metrics.AddQueries(call_.engine_kind(), queries_.rows);
  response_.set_position(state_->position());
  return answer_->Finish();
}

}  // namespace attnd::server
