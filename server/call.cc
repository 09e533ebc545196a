#include "server/call.h"

#include <utility>

namespace attnd::server {

Call::Call(const CallServices& services, CallOrigin origin, CallKind kind,
           std::shared_ptr<Session> session, std::int64_t layer, Admission::Ticket ticket,
           Answered answered)
    : services_(&services),
      origin_(std::move(origin)),
      kind_(kind),
      engine_(session->group(layer).kind),
      stage_start_nanos_(origin_.arrival_nanos),
      session_(std::move(session)),
      use_(std::make_unique<Session::Use>(*session_)),
      ticket_(std::move(ticket)),
      answered_(std::move(answered)) {}

absl::Status Call::StillWanted() const {
  if (services_->clock.MonotonicNanos() >= origin_.deadline_nanos) {
    return absl::DeadlineExceededError("the deadline passed before the work was done");
  }
  if (cancelled()) return absl::CancelledError("the client has cancelled the call");
  return absl::OkStatus();
}

void Call::EndStage(Stage stage) {
  const std::int64_t now = services_->clock.MonotonicNanos();
  services_->metrics.ObserveStage(stage, engine_, now - stage_start_nanos_);
  stage_start_nanos_ = now;
}

void Call::BeginStage() { stage_start_nanos_ = services_->clock.MonotonicNanos(); }

void Call::Answer(const absl::Status& status) {
  services_->metrics.ObserveMessage(kind_, origin_.transport, engine_,
                                    services_->clock.MonotonicNanos() - origin_.arrival_nanos);
  use_ = nullptr;
  // The callback may end what owns this call.
  const Answered answered = std::move(answered_);
  answered(status, std::move(ticket_));
}

}  // namespace attnd::server
