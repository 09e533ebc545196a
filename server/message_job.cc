#include "server/message_job.h"

#include <memory>
#include <new>
#include <utility>

#include "server/error.h"

namespace attnd::server {
namespace {

absl::Status NoMemory() {
  return OutOfMemory("the machine has no memory for the work that this message needs");
}

// Answers a call whose message is in the log.
class AnswerJob final : public Job {
 public:
  AnswerJob(std::shared_ptr<Call> call, absl::Status status)
      : call_(std::move(call)), status_(std::move(status)) {}

 private:
  Next Advance(engine::Scratch& /*scratch*/) override {
    call_->Answer(status_);
    return Next::kEnd;
  }

  const std::shared_ptr<Call> call_;
  const absl::Status status_;
};

}  // namespace

Job::Next MessageJob::Advance(engine::Scratch& scratch) {
  if (stage_ == Stage::kQueue) EnterStage(Stage::kDecode);
  absl::StatusOr<Next> next = TryContinue(scratch);
  if (next.ok() && *next != Next::kEnd) return *next;
  call_.EndStage(stage_);
  const std::shared_ptr<Session> session = call_.session_ptr();
  const bool logged = next.ok() && session->durability() == v1::LOGGED && LogAndAnswer(session);
  Release(*session);
  if (!logged) call_.Answer(next.status());
  return Next::kEnd;
}

// Before the lane is left, so that the log has the order in which messages were published.
bool MessageJob::LogAndAnswer(const std::shared_ptr<Session>& session) {
  std::shared_ptr<Call> call;
  try {
    std::optional<LogEntry> entry = Logged();
    if (!entry) return false;
    SessionStore& store = *call_.services().store;
    call = std::make_shared<Call>(std::move(call_));
    // The log's thread is everybody's: what an answer sets going runs on a worker.
    store.Log(session, *std::move(entry), [session, call](const absl::Status& status) {
      session->Start(std::make_unique<AnswerJob>(call, status), Session::Place::kWorker);
    });
  } catch (const std::bad_alloc&) {
    // What was published is not in the log.
    const absl::Status failed = NoMemory();
    session->NoteLogBroken(failed);
    (call == nullptr ? call_ : *call).Answer(failed);
  }
  return true;
}

absl::StatusOr<Job::Next> MessageJob::TryContinue(engine::Scratch& scratch) {
  absl::Status wanted = call_.StillWanted();
  if (!wanted.ok()) return wanted;
  if (out_of_memory_.load(std::memory_order_relaxed)) return NoMemory();
  // Nothing is published before the last step's end, so that dropping the job undoes all of it.
  try {
    return Continue(scratch);
  } catch (const std::bad_alloc&) {
    // It may have been published without being logged; if not, the next checkpoint mends the log.
    if (publishes()) call_.session().NoteLogBroken(NoMemory());
    return NoMemory();
  }
}

bool MessageJob::RunChain(std::int64_t chain, engine::Scratch& scratch) {
  if (call_.cancelled() || out_of_memory_.load(std::memory_order_relaxed)) return true;
  try {
    return plan_->Run(chain, scratch);
  } catch (const std::bad_alloc&) {
    out_of_memory_.store(true, std::memory_order_relaxed);
    return true;
  }
}

void MessageJob::EnterStage(Stage next) {
  call_.EndStage(stage_);
  stage_ = next;
}

}  // namespace attnd::server
