// The job of an Attend: answers queries from one published state of a layer.
#ifndef ATTND_SERVER_ATTEND_JOB_H_
#define ATTND_SERVER_ATTEND_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "attnd/v1/attention.pb.h"
#include "engine/engine.h"
#include "server/answer.h"
#include "server/call.h"
#include "server/message_job.h"
#include "server/query_rows.h"
#include "server/tensors.h"
#include "server/work.h"

namespace attnd::server {

class AttendJob final : public MessageJob {
 public:
  // `queries` and `positions`, one per query or null, borrow the request, which lives until the
  // call is answered, as does `response`.
  AttendJob(Call call, std::int64_t layer, const RowsView& queries, const std::int64_t* positions,
            const AnswerSpec& spec, v1::AttendResponse& response);

  // The most queries that share one plan.
  static std::int64_t GroupQueries(const LayerGroup& group);

  // The state to answer from; called once, before the job is queued.
  void Observe(LayerStatePtr state) {
    state_ = std::move(state);
    call_.BeginStage();
  }

  // Requires Observe().
  Operations operations() const {
    return AttendOperations(engine_, state_->position(), queries_.rows, spec_.top_k);
  }

 private:
  absl::StatusOr<Next> Continue(engine::Scratch& scratch) override;
  void Release(Session& session) override;
  absl::Status Begin();
  // Opens the chains of the next group of queries.
  Next AttendGroup();
  absl::Status End();

  const std::int64_t layer_;
  const engine::Engine& engine_;
  const std::int64_t group_queries_;
  const RowsView queries_;
  const std::int64_t* const positions_;
  const AnswerSpec spec_;
  v1::AttendResponse& response_;
  LayerStatePtr state_;
  std::optional<QueryRows> rows_;
  std::optional<AnswerBuilder> answer_;
  std::int64_t attended_ = 0;  // queries whose chains have been opened
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_ATTEND_JOB_H_
