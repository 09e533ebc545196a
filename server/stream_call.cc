#include "server/stream_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/call_context.h"
#include "server/error.h"
#include "server/tsan.h"

namespace attnd::server {

StreamCall* StreamCall::Start(grpc::CallbackServerContext& context, const CallServices& services,
                              MessageHandler& messages, SessionTable& sessions) {
  auto* stream = new StreamCall(context, services, messages, sessions);
  services.calls.Add(stream);
  stream->ProceedAndFinish();
  return stream;
}

StreamCall::StreamCall(grpc::CallbackServerContext& context, const CallServices& services,
                       MessageHandler& messages, SessionTable& sessions)
    : context_(context),
      services_(services),
      messages_(messages),
      sessions_(sessions),
      start_nanos_(services.clock.MonotonicNanos()),
      deadline_nanos_(DeadlineNanos(context, start_nanos_)),
      cancellation_(std::make_shared<Cancellation>()) {
  services_.metrics.RpcStarted(RpcMethod::kStream);
}

void StreamCall::OnReadDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    std::unique_ptr<Exchange> exchange = std::move(incoming_);
    if (!ok) {
      half_closed_ = true;
    } else if (!draining_ && !broken_ && !finished_) {
      services_.metrics.MessageReceived(RpcMethod::kStream);
      exchange->arrival_nanos = services_.clock.MonotonicNanos();
      exchange->bytes = static_cast<std::int64_t>(exchange->request.ByteSizeLong());
      absl::StatusOr<Admission::Ticket> ticket = services_.admission.Admit(exchange->bytes);
      if (ticket.ok()) {
        exchange->ticket = *std::move(ticket);
      } else {
        exchange->refusal = ticket.status();
        exchange->response.set_id(exchange->request.id());
        exchange->request.Clear();
        exchange->bytes = 0;
      }
      ++held_messages_;
      held_bytes_ += exchange->bytes;
      waiting_.push_back(std::move(exchange));
    }
  }
  HandleWaiting();
}

void StreamCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    if (ok) {
      services_.metrics.MessageSent(RpcMethod::kStream);
      last_answered_ = writing_->response.id();
    } else {
      broken_ = true;
    }
    --held_messages_;
    held_bytes_ -= writing_->bytes;
    writing_ = nullptr;
  }
  ProceedAndFinish();
}

void StreamCall::OnCancel() {
  {
    MutexLock lock(&mutex_);
    broken_ = true;
  }
  cancellation_->Cancel();
  ProceedAndFinish();
}

void StreamCall::OnDone() {
  TakeOver(this);
  services_.calls.Retire(this);
}

void StreamCall::Drain() {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
  }
  ProceedAndFinish();
}

bool StreamCall::IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) {
  MutexLock lock(&mutex_);
  if (!writing_) return false;
  // Once finished, the status waits behind the answer that the peer does not take.
  return now_nanos - write_start_nanos_ >= (finished_ ? 2 : 1) * patience_nanos;
}

void StreamCall::HoldToEnd() { held_ = HeldCall(context_); }

void StreamCall::EndStuck() {
  const HeldCall held = std::move(held_);
  bool finished = false;
  {
    MutexLock lock(&mutex_);
    finished = finished_;
    stuck_ = true;
  }
  if (finished) {
    held.Cancel();
    return;
  }
  // What is being handled, a wait perhaps, has no reader.
  cancellation_->Cancel();
  ProceedAndFinish();
}

void StreamCall::HandleWaiting() {
  mutex_.Lock();
  FinishIfOver(HandleAndProceed());
}

// Claims the handling of messages, unless another thread has it: that one will see what is new.
// While it is claimed the stream does not end, so the object lives until the claim is given back,
// which is the last thing that is done under the lock.
std::optional<absl::Status> StreamCall::HandleAndProceed() {
  std::optional<absl::Status> end;
  if (!handling_waiting_) {
    handling_waiting_ = true;
    while (!handling_ && !waiting_.empty() && !broken_ && !stuck_) {
      handling_ = std::move(waiting_.front());
      waiting_.pop_front();
      Exchange& exchange = *handling_;
      mutex_.Unlock();
      Handle(exchange);
      mutex_.Lock();
      // An answer does not wait for the messages behind it.
      WriteNext();
    }
    handling_waiting_ = false;
    end = Proceed();
  }
  HandOver(this);
  mutex_.Unlock();
  return end;
}

void StreamCall::Handle(Exchange& exchange) {
  v1::StreamRequest& request = exchange.request;
  v1::StreamResponse& response = exchange.response;
  if (!exchange.refusal.ok()) {
    OnAnswer(messages_.Refused(exchange.refusal), {});
    return;
  }
  // From here on the handler's own admission counts, which covers the answer too.
  exchange.ticket = {};
  response.set_id(request.id());
  const CallOrigin origin = {Transport::kStream, exchange.arrival_nanos, deadline_nanos_,
                             cancellation_};
  const auto answered = [this](const absl::Status& status, Admission::Ticket ticket) {
    OnAnswer(status, std::move(ticket));
  };
  const auto bind = [this, &answered](std::string* session_id) {
    absl::StatusOr<std::string> bound = BindSession(*session_id);
    if (!bound.ok()) {
      answered(bound.status(), {});
      return false;
    }
    *session_id = *std::move(bound);
    return true;
  };
  switch (request.message_case()) {
    case v1::StreamRequest::kAppend:
      if (bind(request.mutable_append()->mutable_session_id())) {
        messages_.Append(origin, request.append(), *response.mutable_append(), answered);
      }
      break;
    case v1::StreamRequest::kAttend:
      if (bind(request.mutable_attend()->mutable_session_id())) {
        messages_.Attend(origin, request.attend(), *response.mutable_attend(), answered);
      }
      break;
    case v1::StreamRequest::kStep:
      if (bind(request.mutable_step()->mutable_session_id())) {
        messages_.Step(origin, request.step(), *response.mutable_step(), answered);
      }
      break;
    case v1::StreamRequest::MESSAGE_NOT_SET:
      answered(Error(v1::INVALID_FIELD, "message is not set; it must be append, attend or step"),
               {});
      break;
  }
}

// Called by whoever ran the message: nothing but the claim on handling keeps the object alive once
// the exchange has left handling_. So both happen under one lock.
void StreamCall::OnAnswer(const absl::Status& status, Admission::Ticket ticket) {
  mutex_.Lock();
  Exchange& exchange = *handling_;
  if (!status.ok()) {
    exchange.response.clear_message();
    *exchange.response.mutable_status() = ToRpcStatus(status);
  }
  // The request's memory is not needed any more; the answer's is.
  const std::int64_t before = exchange.bytes;
  exchange.request.Clear();
  exchange.bytes = static_cast<std::int64_t>(exchange.response.ByteSizeLong());
  held_bytes_ += exchange.bytes - before;
  exchange.ticket = std::move(ticket);
  exchange.ticket.ShrinkTo(exchange.bytes);
  answered_.push_back(std::move(handling_));
  FinishIfOver(HandleAndProceed());
}

void StreamCall::WriteNext() {
  if (writing_ || answered_.empty() || broken_ || stuck_) return;
  writing_ = std::move(answered_.front());
  answered_.pop_front();
  write_start_nanos_ = services_.clock.MonotonicNanos();
  StartWrite(&writing_->response);
}

std::optional<absl::Status> StreamCall::Proceed() {
  if (finished_) return std::nullopt;
  if (broken_ || stuck_) {
    waiting_.clear();
    answered_.clear();
  }
  WriteNext();
  // Nothing may be under way that refers to this object, and all that was taken must be answered.
  const bool idle = !handling_ && !handling_waiting_ && waiting_.empty();
  if (idle && stuck_) {
    finished_ = true;
    services_.metrics.AddRejected(RejectReason::kSlowReader);
    return Standing(v1::SLOW_READER, "the peer does not read its answers");
  }
  if (idle && !writing_ && answered_.empty()) {
    finished_ = broken_ || draining_ || half_closed_;
    // A cancellation may come before OnCancel as the end of what the client sends.
    if (broken_ || (finished_ && context_.IsCancelled())) {
      return absl::CancelledError("the client has gone away");
    }
    if (half_closed_) return absl::OkStatus();
    if (draining_) return Standing(v1::SHUTTING_DOWN, "the server is shutting down");
  }
  const bool may_read = !half_closed_ && !draining_ && !broken_ && !stuck_ && !incoming_ &&
                        held_messages_ < services_.options.max_stream_messages &&
                        held_bytes_ < services_.options.max_stream_bytes;
  if (may_read) {
    incoming_ = std::make_unique<Exchange>();
    StartRead(&incoming_->request);
  }
  return std::nullopt;
}

void StreamCall::ProceedAndFinish() {
  mutex_.Lock();
  std::optional<absl::Status> end = Proceed();
  HandOver(this);
  mutex_.Unlock();
  FinishIfOver(end);
}

// Without an end the object may be gone: another thread may have ended the stream meanwhile.
void StreamCall::FinishIfOver(const std::optional<absl::Status>& end) {
  if (!end) return;
  services_.metrics.RpcHandled(RpcMethod::kStream, static_cast<int>(end->code()),
                               services_.clock.MonotonicNanos() - start_nanos_);
  HandOver(this);
  Finish(ToGrpcStatus(*end));
}

absl::StatusOr<std::string> StreamCall::BindSession(const std::string& session_id) {
  absl::Status valid = session_id.empty() ? absl::OkStatus() : CheckSessionId(session_id);
  if (!valid.ok()) return valid;
  MutexLock lock(&mutex_);
  if (session_id_.empty()) session_id_ = session_id;
  if (session_id.empty() || session_id == session_id_) return session_id_;
  return Error(v1::INVALID_FIELD,
               "session_id is not that of the stream's first message; a stream is for one session");
}

absl::Status StreamCall::Standing(v1::ErrorReason reason, const std::string& message) const {
  ErrorMetadata metadata;
  absl::StatusOr<SessionPtr> session = sessions_.Find({Session::kDefaultTenant, session_id_});
  if (session.ok()) metadata = (*session)->PositionMetadata();
  if (last_answered_) metadata.emplace_back("answered", absl::StrCat(*last_answered_));
  return RetryableError(reason, message, absl::Seconds(1), metadata);
}

}  // namespace attnd::server
