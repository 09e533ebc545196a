// The job of a Step: block by block, appends tokens to a draft and answers their queries from it,
// then publishes once. The answer is kept with the layer, so that a retry gets the same bits.
#ifndef ATTND_SERVER_STEP_JOB_H_
#define ATTND_SERVER_STEP_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "attnd/v1/attention.pb.h"
#include "engine/digest.h"
#include "engine/engine.h"
#include "server/answer.h"
#include "server/call.h"
#include "server/log_record.h"
#include "server/message_job.h"
#include "server/mutation.h"
#include "server/query_rows.h"
#include "server/tensors.h"

namespace attnd::server {

class StepJob final : public MessageJob {
 public:
  // `slice` and `queries` borrow the request, which lives until the call is answered, as does
  // `response`. `reserved` bytes of the budget are taken over.
  StepJob(Call call, const v1::StepRequest& request, const LayerSlice& slice,
          const RowsView& queries, const AnswerSpec& spec, std::int64_t reserved,
          v1::StepResponse& response);

 private:
  absl::StatusOr<Next> Continue(engine::Scratch& scratch) override;
  bool publishes() const override { return true; }
  std::optional<LogEntry> Logged() override;
  void Release(Session& session) override;
  absl::Status Begin();
  absl::StatusOr<Next> ContinueReplay(engine::Scratch& scratch);
  absl::Status Publish(engine::Scratch& scratch);
  engine::Digest QueryDigest() const;

  const v1::StepRequest& request_;
  const engine::TokenSpan span_;
  const engine::Engine& engine_;
  const RowsView queries_;
  const AnswerSpec spec_;
  v1::StepResponse& response_;
  std::unique_ptr<Mutation> mutation_;
  std::optional<QueryRows> rows_;
  std::optional<AnswerBuilder> answer_;
  bool started_ = false;
  bool applies_ = false;
  bool answering_ = false;  // the plan's chains have been opened and not been finished
  LoggedMessage logged_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STEP_JOB_H_
