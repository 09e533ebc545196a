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
#include "server/job.h"
#include "server/query_rows.h"
#include "server/tensors.h"

namespace attnd::server {

class AttendJob : public Job {
 public:
  // `queries` borrows the request, which lives until the call is answered, as does `response`.
  AttendJob(Call call, std::int64_t layer, const RowsView& queries, const AnswerSpec& spec,
            v1::AttendResponse& response);

  // The state to answer from; called once, before the job is queued.
  void Observe(LayerStatePtr state) { state_ = std::move(state); }

  bool brief() const override;
  Next Advance(engine::Scratch& scratch) override;
  std::int64_t chains() const override { return plan_->chains(); }
  bool RunChain(std::int64_t chain, engine::Scratch& scratch) override {
    return call_.cancelled() || plan_->Run(chain, scratch);
  }

  Call& call() { return call_; }

 private:
  absl::Status Begin();
  absl::Status End(engine::Scratch& scratch);

  Call call_;
  const engine::Engine& engine_;
  const RowsView queries_;
  const AnswerSpec spec_;
  v1::AttendResponse& response_;
  LayerStatePtr state_;
  std::optional<QueryRows> rows_;
  std::optional<AnswerBuilder> answer_;
  std::unique_ptr<engine::AttendPlan> plan_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_ATTEND_JOB_H_
