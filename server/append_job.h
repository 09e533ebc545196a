// The job of an Append: applies the tokens in quanta, publishes once, answers.
#ifndef ATTND_SERVER_APPEND_JOB_H_
#define ATTND_SERVER_APPEND_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "server/call.h"
#include "server/log_record.h"
#include "server/message_job.h"
#include "server/mutation.h"

namespace attnd::server {

class AppendJob final : public MessageJob {
 public:
  // Slices borrow the request, which lives until the call is answered, as does `response`.
  // `reserved` bytes of the budget are taken over.
  AppendJob(Call call, const v1::AppendRequest& request, std::vector<LayerSlice> slices,
            std::int64_t reserved, v1::AppendResponse& response);

 private:
  absl::StatusOr<Next> Continue(engine::Scratch& scratch) override;
  absl::StatusOr<Next> TakeTokens(engine::Scratch& scratch);
  absl::Status End();
  bool publishes() const override { return true; }
  std::optional<LogEntry> Logged() override;
  void Release(Session& session) override;
  void WritePositions();

  const v1::AppendRequest& request_;
  v1::AppendResponse& response_;
  const std::vector<engine::TokenSpan> spans_;
  std::unique_ptr<Mutation> mutation_;
  bool started_ = false;
  bool applies_ = false;
  std::size_t slice_ = 0;  // whose tokens are taken, then whose tail is checked
  bool all_taken_ = false;
  LoggedMessage logged_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_APPEND_JOB_H_
