// What the jobs of Append, Attend and Step have in common: they are cancelled between quanta, run
// out of memory without harm, and answer exactly once.
#ifndef ATTND_SERVER_MESSAGE_JOB_H_
#define ATTND_SERVER_MESSAGE_JOB_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/call.h"
#include "server/job.h"
#include "server/session_store.h"

namespace attnd::server {

class MessageJob : public Job {
 public:
  Next Advance(engine::Scratch& scratch) final;
  std::int64_t chains() const final { return plan_->chains(); }
  bool RunChain(std::int64_t chain, engine::Scratch& scratch) final;

  Call& call() { return call_; }

 protected:
  explicit MessageJob(Call call) : call_(std::move(call)) {}

  // One step of the work, a millisecond or so. kEnd: the response is written, and what was to be
  // published is; kChains: `plan_` has been reset. A failure ends the job, and nothing is
  // published.
  virtual absl::StatusOr<Next> Continue(engine::Scratch& scratch) = 0;

  // Whether Continue() may publish.
  virtual bool publishes() const { return false; }

  // Of a LOGGED session: what must be in its log before the call is answered; nothing where the job
  // has changed nothing. Called once Continue() has ended the job without a failure.
  virtual std::optional<LogEntry> Logged() { return std::nullopt; }

  // Gives up what the job holds, before it answers. Request and response may be gone by then.
  virtual void Release(Session& /*session*/) { plan_ = nullptr; }

  // The time so far since the last stage belongs to the stage that ends now.
  void EnterStage(Stage next);

  Call call_;
  std::unique_ptr<engine::AttendPlan> plan_;

 private:
  absl::StatusOr<Next> TryContinue(engine::Scratch& scratch);
  // False where there is nothing to log.
  bool LogAndAnswer(const std::shared_ptr<Session>& session);

  Stage stage_ = Stage::kQueue;
  std::atomic<bool> out_of_memory_{false};  // in a chain
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MESSAGE_JOB_H_
