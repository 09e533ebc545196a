// The reactor of a unary call: counts it, tells its cancellation, finishes it once, deletes itself.
#ifndef ATTND_SERVER_UNARY_CALL_H_
#define ATTND_SERVER_UNARY_CALL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "server/call.h"
#include "server/call_context.h"
#include "server/call_registry.h"
#include "server/error.h"
#include "server/metrics.h"
#include "server/tsan.h"

namespace attnd::server {

// gRPC calls OnDone after Finish, once nothing refers to the reactor any more; so between creation
// and Finish() the object may be used from any thread.
class UnaryCall final : public grpc::ServerUnaryReactor, private OpenCall {
 public:
  UnaryCall(grpc::CallbackServerContext& context, RpcMethod method, const CallServices& services)
      : context_(context),
        method_(method),
        services_(services),
        arrival_nanos_(services.clock.MonotonicNanos()),
        deadline_nanos_(DeadlineNanos(context, arrival_nanos_)),
        cancellation_(std::make_shared<Cancellation>()) {
    services_.metrics.RpcStarted(method_);
    services_.metrics.MessageReceived(method_);
    HandOver(this);
  }

  CallOrigin origin() const {
    return {Transport::kUnary, arrival_nanos_, deadline_nanos_, cancellation_};
  }

  // Holds the ticket until the answer has left.
  void Answer(const absl::Status& status, Admission::Ticket ticket = {}) {
    ticket_ = std::move(ticket);
    answer_nanos_ = services_.clock.MonotonicNanos();
    if (status.ok()) services_.metrics.MessageSent(method_);
    services_.metrics.RpcHandled(method_, static_cast<int>(status.code()),
                                 answer_nanos_ - arrival_nanos_);
    services_.calls.Add(this);
    HandOver(this);
    Finish(ToGrpcStatus(status));
  }

 private:
  void OnCancel() override {
    TakeOver(this);
    cancellation_->Cancel();
    HandOver(this);
  }
  void OnDone() override {
    TakeOver(this);
    services_.calls.Retire(this);
  }
  // What is registered has been answered; its answer holds a part of the admission.
  bool IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) override {
    return now_nanos - answer_nanos_ >= patience_nanos;
  }
  void HoldToEnd() override { held_ = HeldCall(context_); }
  void EndStuck() override {
    services_.metrics.AddRejected(RejectReason::kSlowReader);
    const HeldCall held = std::move(held_);
    held.Cancel();
  }
  // Not documented API of gRPC 1.51, which asks its own reactors only. Both reactions are short, so
  // they run where gRPC notices the event, as its own default reactor's do, and not on a thread of
  // its executor: one change of threads less per call.
  bool InternalInlineable() override { return true; }

  grpc::CallbackServerContext& context_;
  const RpcMethod method_;
  const CallServices& services_;
  const std::int64_t arrival_nanos_;
  const std::int64_t deadline_nanos_;
  const std::shared_ptr<Cancellation> cancellation_;
  std::int64_t answer_nanos_ = 0;
  Admission::Ticket ticket_;
  HeldCall held_;  // from HoldToEnd() to EndStuck()
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_UNARY_CALL_H_
