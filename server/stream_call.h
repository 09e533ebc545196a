// The reactor of a Stream: messages of one session, handled one after another, answered in order.
//
// Reading stops at a bound of messages and bytes that were read and whose answers were not yet
// taken by the peer, and goes on below it: that is the back-pressure. The stream ends
//   - OK, when the client has half-closed and everything is answered;
//   - UNAVAILABLE SHUTTING_DOWN, when the server drains: after the message under way; those that
//     waited are answered with that reason too;
//   - RESOURCE_EXHAUSTED SLOW_READER, when the peer takes no answer for long;
//   - without a word, when the client has gone away.
// The status of the second and third says where the stream stood.
//
// gRPC calls the On... functions from its threads, workers answer from theirs; one mutex orders
// them. The object deletes itself in OnDone, which gRPC calls after Finish; Finish waits for the
// message that is being handled, whose answer refers to the object.
#ifndef ATTND_SERVER_STREAM_CALL_H_
#define ATTND_SERVER_STREAM_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/call.h"
#include "server/call_context.h"
#include "server/call_registry.h"
#include "server/message_handler.h"
#include "server/mutex.h"
#include "server/session_table.h"

namespace attnd::server {

class StreamCall final : public grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamResponse>,
                         private OpenCall {
 public:
  // The stream owns itself. The referenced objects outlive it.
  static StreamCall* Start(grpc::CallbackServerContext& context, const CallServices& services,
                           MessageHandler& messages, SessionTable& sessions);

 private:
  // A message and its answer.
  struct Exchange {
    v1::StreamRequest request;
    v1::StreamResponse response;
    std::int64_t bytes = 0;  // of both
    std::int64_t arrival_nanos = 0;
    Admission::Ticket ticket;  // while it waits, and when it is answered
    absl::Status refusal;      // why it was not admitted; its request is then empty
  };

  StreamCall(grpc::CallbackServerContext& context, const CallServices& services,
             MessageHandler& messages, SessionTable& sessions);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Drain() override;
  bool IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) override;
  void HoldToEnd() override;
  void EndStuck() override;

  // Starts what is due: a write, a read. Returns the status to end with if the stream is over,
  // which the caller passes to Finish() once it has let go of the lock.
  std::optional<absl::Status> Proceed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts to write the next answer if there is one and none is being written.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ProceedAndFinish() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishIfOver(const std::optional<absl::Status>& end);
  // Handles waiting messages until one is under way or none is left, and proceeds.
  void HandleWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<absl::Status> HandleAndProceed() ABSL_UNLOCK_FUNCTION(mutex_);
  // Hands a message to the handler; not under the lock, since a refusal answers at once.
  void Handle(Exchange& exchange) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswer(const absl::Status& status, Admission::Ticket ticket) ABSL_LOCKS_EXCLUDED(mutex_);
  // The session a message is for: its own or the stream's. INVALID_FIELD for another than the
  // stream's.
  absl::StatusOr<std::string> BindSession(const std::string& session_id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A status that says where the stream stands.
  absl::Status Standing(v1::ErrorReason reason, const std::string& message) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext& context_;
  const CallServices services_;
  MessageHandler& messages_;
  SessionTable& sessions_;
  const std::int64_t start_nanos_;
  const std::int64_t deadline_nanos_;
  const std::shared_ptr<Cancellation> cancellation_;
  HeldCall held_;  // from HoldToEnd() to EndStuck()

  Mutex mutex_;
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Exchange> incoming_ ABSL_GUARDED_BY(mutex_);  // being read
  std::deque<std::unique_ptr<Exchange>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Exchange> handling_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Exchange>> answered_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Exchange> writing_ ABSL_GUARDED_BY(mutex_);
  std::int64_t held_messages_ ABSL_GUARDED_BY(mutex_) = 0;  // read, answer not taken
  std::int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t write_start_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::uint64_t> last_answered_ ABSL_GUARDED_BY(mutex_);  // id
  bool handling_waiting_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in HandleWaiting
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the client has gone away
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stuck_ ABSL_GUARDED_BY(mutex_) = false;  // the peer does not read
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STREAM_CALL_H_
