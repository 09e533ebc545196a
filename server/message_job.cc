#include "server/message_job.h"

#include <new>

#include "server/error.h"

namespace attnd::server {
namespace {

absl::Status NoMemory() {
  return OutOfMemory("the machine has no memory for the work that this message needs");
}

}  // namespace

Job::Next MessageJob::Advance(engine::Scratch& scratch) {
  if (stage_ == Stage::kQueue) EnterStage(Stage::kDecode);
  absl::StatusOr<Next> next = TryContinue(scratch);
  if (next.ok() && *next != Next::kEnd) return *next;
  Release();
  call_.EndStage(stage_);
  call_.Answer(next.status());
  return Next::kEnd;
}

absl::StatusOr<Job::Next> MessageJob::TryContinue(engine::Scratch& scratch) {
  absl::Status wanted = call_.StillWanted();
  if (!wanted.ok()) return wanted;
  if (out_of_memory_.load(std::memory_order_relaxed)) return NoMemory();
  // Nothing is published before the last step's end, so that dropping the job undoes all of it.
  try {
    return Continue(scratch);
  } catch (const std::bad_alloc&) {
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
