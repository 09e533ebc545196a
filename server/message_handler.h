// Append, Attend and Step from arrival to the queue, the same for unary calls and streams: checks,
// admission, and the job.
//
// Thread-safe. Every function returns soon: it checks, admits and enqueues, and waits for nothing.
// It computes what seems small (work.h), and no longer than Scheduler::kHereNanos. Brief Attends
// always begin on the spot: to hand one to a worker takes several times as long as to answer it,
// and takes the answers of a connection apart that gRPC would have sent together. Other short
// messages do so on an idle server, one at a time. `answered` is called exactly once, before the
// function returns or from a worker; request and response live until then.
#ifndef ATTND_SERVER_MESSAGE_HANDLER_H_
#define ATTND_SERVER_MESSAGE_HANDLER_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "server/attend_job.h"
#include "server/call.h"
#include "server/failure_log.h"
#include "server/session_directory.h"

namespace attnd::server {

class MessageHandler {
 public:
  // The referenced objects outlive the handler and all calls.
  MessageHandler(const CallServices& services, SessionDirectory& sessions, SessionTable& table,
                 FailureLog& failures)
      : services_(services), sessions_(sessions), table_(table), failures_(failures) {}

  void Append(CallOrigin origin, const v1::AppendRequest& request, v1::AppendResponse& response,
              Answered answered);
  void Attend(CallOrigin origin, const v1::AttendRequest& request, v1::AttendResponse& response,
              Answered answered);
  void Step(CallOrigin origin, const v1::StepRequest& request, v1::StepResponse& response,
            Answered answered);

  // From now on every message is refused with SHUTTING_DOWN, and waits for positions end with it.
  void Drain();
  static absl::Status ShuttingDown();
  // SHUTTING_DOWN once draining.
  absl::Status CheckAccepting() const;

  // Counts a refusal for a limit; returns its argument.
  absl::Status Refused(const absl::Status& status);

 private:
  // Calls `start` with the session once it is in memory, or answers why it is not there; the
  // request waits meanwhile.
  void WithSession(const std::string& id, const google::protobuf::MessageLite& request,
                   const Answered& answered, std::function<absl::Status(const SessionPtr&)> start);
  Answered Watched(const char* what, const std::string& session_id, Answered answered);

  // Answer if they return OK, leave it to the caller otherwise.
  absl::Status StartAppend(const SessionPtr& session, CallOrigin origin,
                           const v1::AppendRequest& request, v1::AppendResponse& response,
                           const Answered& answered);
  absl::Status StartAttend(const SessionPtr& session, CallOrigin origin,
                           const v1::AttendRequest& request, v1::AttendResponse& response,
                           const Answered& answered);
  absl::Status StartStep(const SessionPtr& session, CallOrigin origin,
                         const v1::StepRequest& request, v1::StepResponse& response,
                         const Answered& answered);
  void AttendAtPosition(const SessionPtr& session, std::int64_t layer, std::int64_t position,
                        std::int64_t bytes, Cancellation& cancellation,
                        std::unique_ptr<AttendJob> job);

  const CallServices services_;
  SessionDirectory& sessions_;
  SessionTable& table_;
  FailureLog& failures_;
  std::atomic<bool> draining_{false};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MESSAGE_HANDLER_H_
