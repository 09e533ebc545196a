#include "server/put_feature_map_call.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/error.h"
#include "server/logging.h"
#include "server/tsan.h"

namespace attnd::server {
namespace {

UploadResult ResultOf(const absl::Status& status, bool already_there) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return already_there ? UploadResult::kAlreadyThere : UploadResult::kStored;
    case absl::StatusCode::kInvalidArgument:
      return UploadResult::kInvalid;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return UploadResult::kRefused;
    default:
      return UploadResult::kAbandoned;
  }
}

}  // namespace

PutFeatureMapCall* PutFeatureMapCall::Start(grpc::CallbackServerContext& context,
                                            const CallServices& services, MessageHandler& messages,
                                            FeatureMapStore& store,
                                            v1::PutFeatureMapResponse& response) {
  auto* call = new PutFeatureMapCall(context, services, messages, store, response);
  // Where the server is draining this ends the call.
  services.calls.Add(call);
  MutexLock lock(&call->mutex_);
  HandOver(call);
  if (!call->finished_) call->StartRead(&call->request_);
  return call;
}

PutFeatureMapCall::PutFeatureMapCall(grpc::CallbackServerContext& context,
                                     const CallServices& services, MessageHandler& messages,
                                     FeatureMapStore& store, v1::PutFeatureMapResponse& response)
    : context_(context),
      services_(services),
      messages_(messages),
      response_(response),
      start_nanos_(services.clock.MonotonicNanos()),
      upload_(std::in_place, store, services.options) {
  services_.metrics.RpcStarted(RpcMethod::kPutFeatureMap);
}

void PutFeatureMapCall::OnReadDone(bool ok) {
  TakeOver(this);
  {
    MutexLock lock(&mutex_);
    if (finished_) {
      request_ = {};
      return;
    }
    taking_ = true;
  }
  std::optional<absl::Status> end = ok ? Take() : Complete();
  {
    MutexLock lock(&mutex_);
    taking_ = false;
    if (!end && !end_.ok()) end = end_;
    HandOver(this);
    if (!end) {
      StartRead(&request_);
      return;
    }
    finished_ = true;
    finish_nanos_ = services_.clock.MonotonicNanos();
  }
  FinishWith(*end);
}

std::optional<absl::Status> PutFeatureMapCall::Take() {
  services_.metrics.MessageReceived(RpcMethod::kPutFeatureMap);
  const absl::StatusOr<Admission::Ticket> ticket =
      services_.admission.Admit(static_cast<std::int64_t>(request_.ByteSizeLong()));
  // Goes with its ticket: the call may wait long for the next message, or for its peer to read why
  // this one was refused.
  const v1::PutFeatureMapRequest message = std::move(request_);
  if (!ticket.ok()) return ticket.status();
  absl::Status taken = upload_->Take(message);
  if (!taken.ok()) return taken;
  if (upload_->there()) return Complete();
  return std::nullopt;
}

absl::Status PutFeatureMapCall::Complete() {
  // A cancellation may come before OnCancel as the end of what the client sends.
  if (context_.IsCancelled()) return absl::CancelledError("the client has gone away");
  absl::StatusOr<v1::PutFeatureMapResponse> response = upload_->End();
  if (!response.ok()) return response.status();
  response_ = *std::move(response);
  if (!response_.already_there()) {
    Log(LogLevel::kInfo, "feature map stored",
        {{"sha256", absl::BytesToHexString(response_.sha256())}, {"bytes", response_.bytes()}});
  }
  return absl::OkStatus();
}

void PutFeatureMapCall::End(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    if (taking_) {
      end_ = status;
      return;
    }
    finished_ = true;
    finish_nanos_ = services_.clock.MonotonicNanos();
  }
  FinishWith(status);
}

void PutFeatureMapCall::FinishWith(const absl::Status& status) {
  // Its memory does not wait for the peer to read the answer. request_ is left alone: a read may be
  // writing to it.
  upload_.reset();
  messages_.Refused(status).IgnoreError();
  if (status.ok()) services_.metrics.MessageSent(RpcMethod::kPutFeatureMap);
  services_.metrics.AddUpload(ResultOf(status, response_.already_there()));
  services_.metrics.RpcHandled(RpcMethod::kPutFeatureMap, static_cast<int>(status.code()),
                               services_.clock.MonotonicNanos() - start_nanos_);
  HandOver(this);
  Finish(ToGrpcStatus(status));
}

void PutFeatureMapCall::OnCancel() {
  TakeOver(this);
  End(absl::CancelledError("the client has gone away"));
}

void PutFeatureMapCall::OnDone() {
  TakeOver(this);
  services_.calls.Retire(this);
}

void PutFeatureMapCall::Drain() { End(MessageHandler::ShuttingDown()); }

bool PutFeatureMapCall::IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) {
  MutexLock lock(&mutex_);
  return IsStuckLocked(now_nanos, patience_nanos);
}

bool PutFeatureMapCall::IsStuckLocked(std::int64_t now_nanos, std::int64_t patience_nanos) const {
  if (finished_) return now_nanos - finish_nanos_ >= patience_nanos;
  return now_nanos - start_nanos_ >=
         absl::ToInt64Nanoseconds(services_.options.feature_map_upload_timeout);
}

void PutFeatureMapCall::HoldToEnd() { held_ = HeldCall(context_); }

void PutFeatureMapCall::EndStuck() {
  const HeldCall held = std::move(held_);
  const std::int64_t now = services_.clock.MonotonicNanos();
  bool unread = false;
  {
    // Under one lock: an upload that ends after its time was found to be up has just been answered,
    // and its peer gets the time to read.
    MutexLock lock(&mutex_);
    if (!IsStuckLocked(now, absl::ToInt64Nanoseconds(services_.options.slow_reader_timeout))) {
      return;
    }
    unread = finished_;
  }
  if (unread) {
    services_.metrics.AddRejected(RejectReason::kSlowReader);
    held.Cancel();
    return;
  }
  End(absl::DeadlineExceededError(
      absl::StrCat("the map was not uploaded within feature_map_upload_timeout = ",
                   absl::FormatDuration(services_.options.feature_map_upload_timeout))));
}

}  // namespace attnd::server
