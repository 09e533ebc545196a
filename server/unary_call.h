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
#include "server/clock.h"
#include "server/error.h"
#include "server/metrics.h"
#include "server/tsan.h"

namespace attnd::server {

// gRPC calls OnDone after Finish, once nothing refers to the reactor any more; so between creation
// and Finish() the object may be used from any thread.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const grpc::CallbackServerContext& context, RpcMethod method, const Clock& clock,
            Metrics& metrics)
      : method_(method),
        clock_(clock),
        metrics_(metrics),
        arrival_nanos_(clock.MonotonicNanos()),
        deadline_nanos_(DeadlineNanos(context, arrival_nanos_)),
        cancellation_(std::make_shared<Cancellation>()) {
    metrics_.RpcStarted(method_);
    metrics_.MessageReceived(method_);
    HandOver(this);
  }

  CallOrigin origin() const {
    return {Transport::kUnary, arrival_nanos_, deadline_nanos_, cancellation_};
  }

  // Holds the ticket until the answer has left.
  void Answer(const absl::Status& status, Admission::Ticket ticket = {}) {
    ticket_ = std::move(ticket);
    if (status.ok()) metrics_.MessageSent(method_);
    metrics_.RpcHandled(method_, static_cast<int>(status.code()),
                        clock_.MonotonicNanos() - arrival_nanos_);
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
    delete this;
  }
  // Both reactions are short, so they run where gRPC notices the event, as its own default
  // reactor's do, and not on a thread of its executor: one change of threads less per call.
  bool InternalInlineable() override { return true; }

  const RpcMethod method_;
  const Clock& clock_;
  Metrics& metrics_;
  const std::int64_t arrival_nanos_;
  const std::int64_t deadline_nanos_;
  const std::shared_ptr<Cancellation> cancellation_;
  Admission::Ticket ticket_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_UNARY_CALL_H_
